//! Commands and flags.

mod connection;
mod output;
mod preemption;
mod verbs;

use clap::{Args as _, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use connection::Connection;
pub use output::{Format, ObjectOutput, ScreenOutput};
pub use preemption::{AlgorithmArg, OrderArg, PreemptionArgs, VictimsArg};
pub use verbs::{
    AgentsArgs, CheckpointArgs, CompletionArgs, ConvertArgs, ConvertFormat, DashboardArgs,
    DoctorArgs, DryRunArg, ExplainArgs, LogsArgs, NamespaceArgs, NodesArgs, QueueArgs,
    SnapshotArgs, StatusArgs, TopArgs, VersionArgs, WhatifArgs, WriteArgs,
};

/// Show and control training jobs that are placed, restarted and preempted as gangs.
///
/// Exit codes: 0 the command succeeded, or the workload fits; 1 error; 2 the workload does not fit
/// (whatif), or a check of the installation fails (doctor).
#[derive(Debug, Parser)]
#[command(name = "kubectl-lockstep", bin_name = "kubectl lockstep", version = lockstep_version::LONG)]
pub struct Args {
    /// How to reach the cluster.
    #[command(flatten)]
    pub connection: Connection,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Last line of each help.
const FLAGS_ELSEWHERE: &str =
    "`kubectl lockstep options` lists the flags for the connection to the cluster.";

impl Args {
    /// Parses the command line of this process.
    pub fn parse_line() -> Result<Self, clap::Error> {
        Self::from_arg_matches(&command().try_get_matches()?)
    }
}

/// The command line. The help of each command leaves out the flags of the connection.
fn command() -> clap::Command {
    let mut command = Args::command()
        .mut_args(|flag| flag.hide(true))
        .after_help(FLAGS_ELSEWHERE);
    for verb in command.get_subcommands_mut() {
        let examples = verb.get_after_help().map(ToString::to_string);
        let help = format!("{}\n\n{FLAGS_ELSEWHERE}", examples.unwrap_or_default());
        *verb = std::mem::take(verb).after_help(help);
    }
    command
}

/// The flags for the connection, with their meaning.
pub fn connection_help() -> String {
    Connection::augment_args(clap::Command::new("options"))
        .disable_help_flag(true)
        .help_template("Flags of all commands that read the cluster\n\n{all-args}\n")
        .render_help()
        .to_string()
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show one workload: nodes of its members, current restart, last failures, restarts left, and next
    /// steps.
    #[command(after_help = "\
Examples:
  kubectl lockstep status llama
  kubectl lockstep status llama -n ml --watch")]
    #[command(visible_alias = "describe")]
    Status(StatusArgs),
    /// Explain from status and events why a workload is queued, was preempted, or preempts.
    #[command(after_help = "\
Examples:
  kubectl lockstep explain llama
  kubectl lockstep explain llama -n ml -o json")]
    Explain(ExplainArgs),
    /// Show the queued gangs in scheduling order, with their reservations and the reason why they are
    /// queued.
    ///
    /// Default: all namespaces. With --namespace, places count only the gangs of that namespace.
    #[command(after_help = "\
Examples:
  kubectl lockstep queue
  kubectl lockstep queue -l team=vision -o wide --watch")]
    Queue(QueueArgs),
    /// Compute whether a workload would fit, on which nodes, and which victims it would evict. Exits with
    /// 2 if the workload does not fit.
    #[command(after_help = "\
Examples:
  kubectl lockstep whatif -f gang.yaml
  kubectl lockstep whatif -f gang.yaml --snapshot cluster.json.zst --order least-work")]
    Whatif(WhatifArgs),
    /// Convert jobs of other projects to TrainingWorkloads: PyTorchJob, TFJob, JAXJob, MPIJob, TrainJob
    /// with its runtime, JobSet, Volcano Job, Indexed Job.
    ///
    /// A comment in the output names each field that has no equal, with what to do. Objects of other
    /// kinds stay as they are. Reads the cluster only for runtimes that are not in the input.
    #[command(after_help = "\
Examples:
  kubectl lockstep convert -f pytorchjob.yaml > workload.yaml
  kubectl lockstep convert -f trainjob.yaml -f runtime.yaml
  kubectl get jobsets -o yaml | kubectl lockstep convert -f -")]
    Convert(ConvertArgs),
    /// Write the scheduling state of the cluster to a file, for `whatif --snapshot` and for bug reports.
    ///
    /// The file is compressed JSON. It has nodes with their labels and taints, resources of pods (no
    /// images, environment, arguments or annotations), gangs, disruption budgets and priority
    /// classes. Default: all namespaces. With --namespace, capacity of pods in other namespaces counts
    /// as free.
    #[command(after_help = "\
Examples:
  kubectl lockstep snapshot
  kubectl lockstep snapshot --hash-names -o - | zstd -dc | jq .nodes")]
    Snapshot(SnapshotArgs),
    /// Print the log of a member. Default: the first member.
    ///
    /// Selects one workload by name, or several by labels.
    #[command(after_help = "\
Examples:
  kubectl lockstep logs llama --failed
  kubectl lockstep logs llama --rank 3 --tail 100 -f
  kubectl lockstep logs llama -n ml --group workers --all --prefix --since 10m
  kubectl lockstep logs -n ml -l team=vision --failed")]
    Logs(LogsArgs),
    /// Show how many accelerators workloads hold and request, by namespace and priority.
    #[command(after_help = "\
Examples:
  kubectl lockstep top
  kubectl lockstep top -l team=vision
  kubectl lockstep top -n ml -o json")]
    Top(TopArgs),
    /// Show the node agents: which nodes restart members in place.
    #[command(after_help = "\
Examples:
  kubectl lockstep agents
  kubectl lockstep agents -o wide --agent-namespace lockstep-agent")]
    Agents(AgentsArgs),
    /// Show the nodes with signals: announced maintenance, removals and faults.
    #[command(after_help = "\
Examples:
  kubectl lockstep nodes
  kubectl lockstep nodes -o json")]
    Nodes(NodesArgs),
    /// Check the installation, as far as your permissions allow. Exits with 2 if a check fails.
    #[command(after_help = "\
Examples:
  kubectl lockstep doctor
  kubectl lockstep doctor -n ml -o json")]
    Doctor(DoctorArgs),
    /// Serve pages about the cluster on this machine, with your own rights: use of the nodes, queue,
    /// workloads, incidents, health. Writes nothing to the cluster.
    ///
    /// Prints an address with a secret token. Only programs of this machine can connect.
    #[command(after_help = "\
Examples:
  kubectl lockstep dashboard --open
  kubectl lockstep dashboard -n ml --view '#/workload?w=ml/llama'
  kubectl lockstep dashboard --snapshot cluster.json.zst")]
    Dashboard(DashboardArgs),
    /// Restart all members of a workload once. Does not use the restart budget.
    #[command(after_help = "\
Examples:
  kubectl lockstep restart llama
  kubectl lockstep restart llama -n ml --dry-run=server")]
    Restart(WriteArgs),
    /// Terminate the pods of a workload and release its nodes until the workload is resumed.
    #[command(after_help = "\
Examples:
  kubectl lockstep suspend llama
  kubectl lockstep suspend llama -n ml --dry-run=client")]
    Suspend(WriteArgs),
    /// Queue a suspended workload again.
    #[command(after_help = "\
Examples:
  kubectl lockstep resume llama
  kubectl lockstep resume llama -n ml --dry-run=server")]
    Resume(WriteArgs),
    /// Request a checkpoint from the processes of a workload, and wait for the outcome. Nothing is
    /// stopped.
    ///
    /// The workload needs `spec.checkpoint.onRequest`. With --record, nothing is requested: only work
    /// after the recorded time counts as lost.
    #[command(after_help = "\
Examples:
  kubectl lockstep checkpoint llama
  kubectl lockstep checkpoint llama -n ml --record --at 2026-11-21T10:00:00Z")]
    Checkpoint(CheckpointArgs),
    /// Show the versions of this program, the API, manager, agents and Kubernetes.
    #[command(after_help = "\
Examples:
  kubectl lockstep version
  kubectl lockstep version --client -o json")]
    Version(VersionArgs),
    /// List the flags for the connection to the cluster, which every command takes.
    #[command(after_help = "\
Examples:
  kubectl lockstep options
  kubectl lockstep queue --context prod --request-timeout 1m")]
    Options,
    /// Install completion of `kubectl lockstep` for kubectl, including names in the cluster, or print a
    /// completion script of `kubectl-lockstep` for a shell.
    #[command(after_help = "\
Examples:
  kubectl lockstep completion --kubectl /usr/local/bin
  kubectl lockstep completion bash > /etc/bash_completion.d/kubectl-lockstep")]
    Completion(CompletionArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_model::Rules;

    #[test]
    fn flags_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }

    #[test]
    fn flags_of_the_connection_are_only_in_the_list_of_options() {
        let mut command = super::command();
        command.build();
        let status = command.find_subcommand_mut("status").unwrap();
        let help = status.render_long_help().to_string();
        assert!(help.contains(FLAGS_ELSEWHERE), "{help}");
        for flag in Args::command()
            .get_arguments()
            .filter_map(clap::Arg::get_long)
        {
            let flag = format!("--{flag}");
            assert!(!help.contains(&flag), "{help}");
            assert!(connection_help().contains(&flag), "{flag}");
        }
        let line = ["kubectl-lockstep", "describe", "llama", "--context", "prod"];
        assert!(super::command().try_get_matches_from(line).is_ok());
    }

    #[test]
    fn without_flags_the_rules_are_the_defaults() {
        let args = Args::try_parse_from(["kubectl-lockstep", "whatif", "-f", "gang.yaml"]).unwrap();
        let Command::Whatif(args) = args.command else {
            panic!("whatif")
        };
        let mut rules = Rules::default();
        assert!(args.rules.change(&mut rules).is_empty() && rules == Rules::default());
    }

    #[test]
    fn a_flag_that_says_otherwise_than_the_configuration_is_named() {
        let line = "kubectl-lockstep whatif -f g --order strict-priority --victims any";
        let args = Args::try_parse_from(line.split(' ')).unwrap();
        let Command::Whatif(args) = args.command else {
            panic!("whatif")
        };
        let mut rules = Rules::default();
        assert_eq!(args.rules.change(&mut rules), ["--victims"]);
        assert_eq!(rules.victims.scope, lockstep_model::VictimScope::Any);
    }

    #[test]
    fn one_namespace_and_all_of_them_exclude_each_other() {
        for command in ["snapshot", "queue"] {
            let args = ["kubectl-lockstep", command, "-A", "-n", "ml"];
            assert!(Args::try_parse_from(args).is_err(), "{command}");
        }
    }

    #[test]
    fn what_shows_objects_has_formats_and_what_shows_many_workloads_can_be_narrowed() {
        let command = Args::command();
        for (flags, verbs) in [
            (
                &["namespace", "all-namespaces", "selector"][..],
                "queue logs top",
            ),
            (
                &["output"],
                "status explain queue whatif top agents doctor version",
            ),
            (&["watch"], "queue status"),
        ] {
            for (verb, flag) in verbs
                .split(' ')
                .flat_map(|v| flags.iter().map(move |f| (v, f)))
            {
                let found = command.find_subcommand(verb).unwrap();
                let mut known = found.get_arguments();
                let there = known.any(|a| a.get_long() == Some(flag));
                assert!(there, "{verb} --{flag}");
            }
        }
    }

    #[test]
    fn the_page_names_every_verb_and_every_flag_of_the_connection() {
        let page = include_str!("../../../../docs/cli.md");
        let command = Args::command();
        for verb in command.get_subcommands() {
            let name = verb.get_name();
            let named = [format!("`{name}`"), format!("`{name} ")];
            assert!(named.iter().any(|n| page.contains(n)), "{name}");
        }
        for flag in command.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(page.contains(&format!("--{flag}")), "{flag}");
        }
    }

    /// Every page of the documentation and the README: name and text.
    fn pages() -> Vec<(String, String)> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut found = vec![root.join("README.md")];
        let mut folders = vec![root.join("docs")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "md") {
                    found.push(path);
                }
            }
        }
        let read = |path: std::path::PathBuf| {
            let text = std::fs::read_to_string(&path).unwrap();
            (path.display().to_string(), text)
        };
        found.into_iter().map(read).collect()
    }

    /// Commands in a text, without `kubectl lockstep`: lines of blocks, and spans of code.
    fn commands_in(text: &str) -> Vec<String> {
        let mut out = Vec::new();
        for (n, part) in text.split("```").enumerate() {
            if n % 2 == 1 {
                for line in part.lines() {
                    let line = line.trim_start_matches("$ ");
                    out.extend(line.strip_prefix("kubectl lockstep ").map(str::to_owned));
                }
                continue;
            }
            for span in part.split('`').skip(1).step_by(2) {
                let span = span.split_whitespace().collect::<Vec<_>>().join(" ");
                out.extend(span.strip_prefix("kubectl lockstep ").map(str::to_owned));
            }
        }
        out
    }

    #[test]
    fn commands_are_found_in_blocks_and_in_spans() {
        let text = "say `kubectl lockstep\ntop -A`:\n```\n$ kubectl lockstep agents\nNODE\n```\n`kubectl get tw`";
        assert_eq!(commands_in(text), ["top -A", "agents"]);
    }

    /// What the program says of a command of a page, if that is not how it is called.
    fn refused(command: &str) -> Option<String> {
        // What is beside the command: a pipe, a comment, words left out.
        let words = command
            .split(['|', '>', '#'])
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .filter(|w| *w != "...");
        let error = Args::try_parse_from(["kubectl-lockstep"].into_iter().chain(words)).err()?;
        // A verb alone names the verb.
        let incomplete = clap::error::ErrorKind::MissingRequiredArgument;
        let verb = !command.contains(' ');
        (!(verb && error.kind() == incomplete)).then(|| error.to_string())
    }

    #[test]
    fn every_command_of_the_documentation_parses() {
        let mut seen = 0;
        for (page, text) in pages() {
            for command in commands_in(&text) {
                assert_eq!(refused(&command), None, "{page}: {command}");
                seen += 1;
            }
        }
        assert!(seen > 30, "{seen} commands");
    }

    #[test]
    fn a_command_that_does_not_exist_is_noticed() {
        assert_eq!(refused("explain"), None);
        assert_eq!(refused("queue -A ... | grep llama"), None);
        for (command, said) in [
            ("queue --colour", "unexpected argument '--colour'"),
            ("lst", "unrecognized subcommand 'lst'"),
            ("explain -n ml", "required arguments were not provided"),
        ] {
            let found = refused(command).unwrap_or_default();
            assert!(found.contains(said), "{command}: {found}");
        }
    }

    /// How many flags the table of verbs of a page has, and those that their verb has not.
    fn flags_of_table(page: &str) -> (usize, Vec<String>) {
        let command = Args::command();
        let (mut seen, mut unknown) = (0, Vec::new());
        for row in page.lines().filter(|l| l.starts_with("| `")) {
            let cell = row.split(" | ").next().unwrap_or_default();
            for usage in cell.split('`').skip(1).step_by(2) {
                let mut words = usage.split_whitespace();
                let name = words.next().unwrap_or_default();
                let Some(verb) = command.find_subcommand(name) else {
                    continue;
                };
                let known = |flag: &str| {
                    let mut all = verb.get_arguments().chain(command.get_arguments());
                    all.any(|a| match flag.strip_prefix("--") {
                        Some(long) => a.get_long() == Some(long),
                        None => a.get_short().is_some_and(|s| flag == format!("-{s}")),
                    })
                };
                for word in words {
                    let flag = word.trim_matches(['[', ']']);
                    if flag.starts_with('-') {
                        seen += 1;
                        if !known(flag) {
                            unknown.push(format!("{name} {flag}"));
                        }
                    }
                }
            }
        }
        (seen, unknown)
    }

    #[test]
    fn every_flag_in_the_table_of_verbs_is_one_of_its_verb() {
        let (seen, unknown) = flags_of_table(include_str!("../../../../docs/cli.md"));
        assert!(seen > 15 && unknown.is_empty(), "{seen}: {unknown:?}");
        let page = "| `top [-A] [--watch]`, `queue -z` | what runs |";
        let unknown = vec!["top --watch".to_owned(), "queue -z".to_owned()];
        assert_eq!(flags_of_table(page), (3, unknown));
    }

    /// What is wrong with the examples in the help of a verb.
    fn wrong_examples(help: &str) -> Vec<String> {
        let lines = help.lines();
        let examples: Vec<&str> = lines
            .filter_map(|line| line.strip_prefix("  kubectl lockstep "))
            .collect();
        let wrong = examples.iter().filter_map(|example| {
            let words = example.split(['|', '>']).next()?.split_whitespace();
            let parsed = Args::try_parse_from(["kubectl-lockstep"].into_iter().chain(words));
            Some(format!("{example}: {}", parsed.err()?))
        });
        let few = (examples.len() < 2).then(|| format!("{} examples", examples.len()));
        wrong.chain(few).collect()
    }

    #[test]
    fn every_verb_has_two_examples_that_parse() {
        for verb in Args::command()
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
        {
            let help = verb
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert_eq!(wrong_examples(&help), [""; 0], "{}", verb.get_name());
        }
    }

    #[test]
    fn a_verb_with_one_example_or_one_that_does_not_parse_is_noticed() {
        let queue = "Examples:\n  kubectl lockstep queue\n";
        assert_eq!(wrong_examples(queue), ["1 examples"]);
        let found = wrong_examples(&format!("{queue}  kubectl lockstep queue --colour"));
        assert!(
            found.len() == 1 && found[0].contains("'--colour'"),
            "{found:?}"
        );
    }
}

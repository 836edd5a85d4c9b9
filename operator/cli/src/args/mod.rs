//! Commands and flags.

mod connection;
mod output;
mod preemption;

use std::path::PathBuf;

use clap::{Args as Group, Parser, Subcommand};
use clap_complete::Shell;

pub use connection::Connection;
pub use output::{Format, ObjectOutput};
pub use preemption::{AlgorithmArg, OrderArg, PreemptionArgs, VictimsArg};

/// Training jobs that are placed, restarted and preempted as gangs: how they are, why they wait, and
/// what would happen.
///
/// Exit codes: 0 the command succeeded, or the workload fits; 1 error; 2 the workload does not fit
/// (whatif).
#[derive(Debug, Parser)]
#[command(name = "kubectl-lockstep", bin_name = "kubectl lockstep", version)]
pub struct Args {
    /// How to reach the cluster.
    #[command(flatten)]
    pub connection: Connection,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Which objects a command is about.
#[derive(Clone, Debug, Default, Group)]
pub struct NamespaceArgs {
    /// Namespace.
    #[arg(short, long, conflicts_with = "all_namespaces")]
    pub namespace: Option<String>,
    /// All namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say why a workload waits, was preempted or preempts, from its status and events.
    #[command(after_help = "\
Examples:
  kubectl lockstep explain llama
  kubectl lockstep explain llama -n ml -o json")]
    Explain {
        /// Name of the TrainingWorkload.
        name: String,
        /// Namespace. Default: that of the context.
        #[arg(short, long)]
        namespace: Option<String>,
        /// Format of the answer.
        #[command(flatten)]
        output: ObjectOutput,
    },
    /// Show which gangs wait, in the order in which the scheduler serves them, what is reserved for them,
    /// and why they wait.
    ///
    /// Of all namespaces, unless one is named; places are then those among the gangs of that one.
    #[command(after_help = "\
Examples:
  kubectl lockstep queue
  kubectl lockstep queue -l team=vision -o wide --watch")]
    Queue {
        /// Whose gangs.
        #[command(flatten)]
        scope: NamespaceArgs,
        /// Only gangs of workloads with these labels; places stay those among all.
        #[arg(short = 'l', long, value_name = "SELECTOR")]
        selector: Option<String>,
        /// Show it again whenever it changes.
        #[arg(short, long)]
        watch: bool,
        /// Format of the answer.
        #[command(flatten)]
        output: ObjectOutput,
    },
    /// Ask the engine whether a workload would fit, where, and whom it would evict. Exits with 2
    /// when it does not fit.
    #[command(after_help = "\
Examples:
  kubectl lockstep whatif -f gang.yaml
  kubectl lockstep whatif -f gang.yaml --snapshot cluster.json.zst --order least-work")]
    Whatif {
        /// Manifest of one TrainingWorkload, YAML or JSON; - reads standard input.
        #[arg(short, long, value_name = "FILE")]
        filename: PathBuf,
        /// Judge over this file, written by `snapshot`, instead of the cluster.
        #[arg(long, value_name = "FILE")]
        snapshot: Option<PathBuf>,
        /// Namespace of a manifest that names none. Default: that of the context, `default` with
        /// --snapshot.
        #[arg(short, long)]
        namespace: Option<String>,
        /// What the manager's configuration says.
        #[command(flatten)]
        rules: PreemptionArgs,
        /// Format of the answer.
        #[command(flatten)]
        output: ObjectOutput,
    },
    /// Write what the engine knows of the cluster to a file, for `whatif --snapshot` and for bug
    /// reports.
    ///
    /// The file is compressed JSON. It has nodes with their labels and taints, what pods hold (no
    /// images, environment, arguments or annotations), gangs, disruption budgets and priority
    /// classes. Of all namespaces, unless one is named: what pods of others hold then counts as
    /// free.
    #[command(after_help = "\
Examples:
  kubectl lockstep snapshot
  kubectl lockstep snapshot --hash-names -o - | zstd -dc | jq .nodes")]
    Snapshot {
        /// The file, replaced if it exists; - writes to standard output.
        #[arg(short, long, value_name = "FILE", default_value = "cluster.json.zst")]
        output: PathBuf,
        /// Replace names of nodes, namespaces, objects and groups, UIDs and values of pod labels by
        /// salted hashes. The salt is not kept. Values of node labels stay, since selectors ask for
        /// them.
        #[arg(long)]
        hash_names: bool,
        /// Whose pods and gangs.
        #[command(flatten)]
        scope: NamespaceArgs,
    },
    /// Print a completion script for a shell.
    #[command(after_help = "\
Examples:
  kubectl lockstep completion bash > /etc/bash_completion.d/kubectl-lockstep
  kubectl lockstep completion zsh")]
    Completion {
        /// The shell.
        shell: Shell,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use lockstep_model::Rules;

    #[test]
    fn flags_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }

    #[test]
    fn without_flags_the_rules_are_the_defaults() {
        let args = Args::try_parse_from(["kubectl-lockstep", "whatif", "-f", "gang.yaml"]).unwrap();
        let Command::Whatif { rules, .. } = args.command else {
            panic!("whatif")
        };
        assert_eq!(Rules::from(&rules), Rules::default());
    }

    #[test]
    fn one_namespace_and_all_of_them_exclude_each_other() {
        for command in ["snapshot", "queue"] {
            let args = ["kubectl-lockstep", command, "-A", "-n", "ml"];
            assert!(Args::try_parse_from(args).is_err(), "{command}");
        }
    }

    #[test]
    fn every_verb_has_two_examples_that_parse() {
        for verb in Args::command()
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
        {
            let help = verb.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            let examples: Vec<&str> = help
                .lines()
                .filter_map(|line| line.strip_prefix("  kubectl lockstep "))
                .collect();
            assert!(examples.len() >= 2, "{}: {help}", verb.get_name());
            for example in examples {
                let words = example.split(['|', '>']).next().unwrap_or_default();
                let words = ["kubectl-lockstep"]
                    .into_iter()
                    .chain(words.split_whitespace());
                let parsed = Args::try_parse_from(words);
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
            }
        }
    }
}

//! Commands and flags.

mod connection;
mod output;
mod preemption;
mod verbs;

use clap::{Parser, Subcommand};

pub use connection::Connection;
pub use output::{Format, ObjectOutput, ScreenOutput};
pub use preemption::{AlgorithmArg, OrderArg, PreemptionArgs, VictimsArg};
pub use verbs::{
    AgentsArgs, CheckpointArgs, CompletionArgs, DoctorArgs, DryRunArg, ExplainArgs, ListArgs,
    LogsArgs, NamespaceArgs, QueueArgs, SnapshotArgs, StatusArgs, TopArgs, VersionArgs, WhatifArgs,
    WriteArgs,
};

/// Training jobs that are placed, restarted and preempted as gangs: how they are, why they wait, and
/// what would happen.
///
/// Exit codes: 0 the command succeeded, or the workload fits; 1 error; 2 the workload does not fit
/// (whatif), or something keeps Lockstep from working (doctor).
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

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List workloads with their phase and why they are in it.
    ///
    /// Of the namespace of the context, unless another or all are named.
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  kubectl lockstep list -A --watch
  kubectl lockstep list -n ml -l team=vision -o wide"
    )]
    List(ListArgs),
    /// Show one workload: where its members are, what happens, the last failures, restarts left, and
    /// what to do.
    #[command(after_help = "\
Examples:
  kubectl lockstep status llama
  kubectl lockstep status llama -n ml --watch")]
    Status(StatusArgs),
    /// Say why a workload waits, was preempted or preempts, from its status and events.
    #[command(after_help = "\
Examples:
  kubectl lockstep explain llama
  kubectl lockstep explain llama -n ml -o json")]
    Explain(ExplainArgs),
    /// Show which gangs wait, in the order in which the scheduler serves them, what is reserved for them,
    /// and why they wait.
    ///
    /// Of all namespaces, unless one is named; places are then those among the gangs of that one.
    #[command(after_help = "\
Examples:
  kubectl lockstep queue
  kubectl lockstep queue -l team=vision -o wide --watch")]
    Queue(QueueArgs),
    /// Ask the engine whether a workload would fit, where, and whom it would evict. Exits with 2
    /// when it does not fit.
    #[command(after_help = "\
Examples:
  kubectl lockstep whatif -f gang.yaml
  kubectl lockstep whatif -f gang.yaml --snapshot cluster.json.zst --order least-work")]
    Whatif(WhatifArgs),
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
    Snapshot(SnapshotArgs),
    /// Print the log of a member: of the first, unless others are named.
    #[command(after_help = "\
Examples:
  kubectl lockstep logs llama --failed
  kubectl lockstep logs llama --rank 3 --tail 100 -f
  kubectl lockstep logs llama -n ml --group workers --all --prefix --since 10m")]
    Logs(LogsArgs),
    /// Show how many accelerators gangs hold and wait for, by namespace and priority.
    #[command(after_help = "\
Examples:
  kubectl lockstep top
  kubectl lockstep top -n ml -o json")]
    Top(TopArgs),
    /// Show the node agents: which nodes restart members in place.
    #[command(after_help = "\
Examples:
  kubectl lockstep agents
  kubectl lockstep agents -o wide --agent-namespace lockstep-agent")]
    Agents(AgentsArgs),
    /// Look whether the installation is healthy, as far as you may see it. Exits with 2 when something
    /// keeps Lockstep from working.
    #[command(after_help = "\
Examples:
  kubectl lockstep doctor
  kubectl lockstep doctor -o json")]
    Doctor(DoctorArgs),
    /// Start all members of a workload again, once; that costs nothing of its restart budget.
    #[command(after_help = "\
Examples:
  kubectl lockstep restart llama
  kubectl lockstep restart llama -n ml --dry-run=server")]
    Restart(WriteArgs),
    /// End the pods of a workload and release its nodes, until it is resumed.
    #[command(after_help = "\
Examples:
  kubectl lockstep suspend llama
  kubectl lockstep suspend llama -n ml --dry-run=client")]
    Suspend(WriteArgs),
    /// Let a suspended workload queue again.
    #[command(after_help = "\
Examples:
  kubectl lockstep resume llama
  kubectl lockstep resume llama -n ml --dry-run=server")]
    Resume(WriteArgs),
    /// Say that the state of a workload was saved: only work after it counts as lost.
    #[command(after_help = "\
Examples:
  kubectl lockstep checkpoint llama
  kubectl lockstep checkpoint llama -n ml --at 2026-11-21T10:00:00Z")]
    Checkpoint(CheckpointArgs),
    /// Show the versions of this program, the API, manager, agents and Kubernetes.
    #[command(after_help = "\
Examples:
  kubectl lockstep version
  kubectl lockstep version -o json")]
    Version(VersionArgs),
    /// Have kubectl complete `kubectl lockstep`, names in the cluster included, or print a script for a
    /// shell that completes `kubectl-lockstep`.
    #[command(after_help = "\
Examples:
  kubectl lockstep completion --kubectl /usr/local/bin
  kubectl lockstep completion bash > /etc/bash_completion.d/kubectl-lockstep")]
    Completion(CompletionArgs),
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

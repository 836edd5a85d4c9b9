//! Commands and flags.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Group, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use lockstep_engine as engine;
use lockstep_model::{Rules, VictimRules, VictimScope};

/// Why a workload waits, who waits before it, whom a new one would evict, and the cluster as a file.
///
/// Nothing is ever written to the cluster.
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

/// How to reach the cluster.
#[derive(Debug, Group)]
pub struct Connection {
    /// Kubeconfig. Default: $KUBECONFIG, else ~/.kube/config, else the service account of the pod.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say why a workload waits, was preempted or preempts, from its status and events.
    Explain {
        /// Name of the TrainingWorkload.
        name: String,
        /// Namespace. Default: that of the context.
        #[arg(short, long)]
        namespace: Option<String>,
        /// Format of the answer.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Format,
    },
    /// Show which gangs wait, in the order in which the scheduler serves them, what is reserved for them,
    /// and why they wait.
    Queue {
        /// Only gangs of this namespace, where you may not list others: places are then among these.
        #[arg(short, long, conflicts_with = "all_namespaces")]
        namespace: Option<String>,
        /// All namespaces, which is the default.
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// Format of the answer.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Format,
    },
    /// Ask the engine whether a workload would fit, where, and whom it would evict. Exits with 2
    /// when it does not fit.
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
        #[arg(short, long, value_enum, default_value = "table")]
        output: Format,
    },
    /// Write what the engine knows of the cluster to a file, for `whatif --snapshot` and for bug
    /// reports.
    ///
    /// The file is compressed JSON. It has nodes with their labels and taints, what pods hold (no
    /// images, environment, arguments or annotations), gangs, disruption budgets and priority
    /// classes.
    Snapshot {
        /// The file, replaced if it exists; - writes to standard output.
        #[arg(short, long, value_name = "FILE", default_value = "cluster.json.zst")]
        output: PathBuf,
        /// Replace names of nodes, namespaces, objects and groups, UIDs and values of pod labels by
        /// salted hashes. The salt is not kept. Values of node labels stay, since selectors ask for
        /// them.
        #[arg(long)]
        hash_names: bool,
        /// Only pods and gangs of this namespace, where you may not list others: their capacity then
        /// counts as free.
        #[arg(short, long, conflicts_with = "all_namespaces")]
        namespace: Option<String>,
        /// All namespaces, which is the default.
        #[arg(short = 'A', long)]
        all_namespaces: bool,
    },
    /// Print a completion script for a shell.
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// The parts of the manager's configuration that the answer depends on; names and defaults are
/// those of `scheduler.preemption` and `scheduler.reservations`.
#[derive(Debug, Group)]
pub struct PreemptionArgs {
    /// How victims are chosen; as `algorithm` of the manager's configuration.
    #[arg(long, value_enum, default_value = "least-cost")]
    pub algorithm: AlgorithmArg,
    /// What comes first when priorities and lost work disagree; as `order` of the configuration.
    #[arg(long, value_enum, default_value = "strict-priority")]
    pub order: OrderArg,
    /// Seconds that work runs before it may be evicted; as `minRuntimeSeconds` of the
    /// configuration.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub min_runtime_seconds: u64,
    /// Evictions caused in turn that count towards a victim's cost; as `followOnDepth` of the
    /// configuration.
    #[arg(long, value_name = "DEPTH", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub follow_on_depth: u8,
    /// Which work may be evicted; as `victims.scope` of the configuration.
    #[arg(long, value_enum, default_value = "accelerators")]
    pub victims: VictimsArg,
    /// For how many waiting gangs of each priority capacity is reserved; as
    /// `reservations.perPriority` of the configuration.
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    pub reservations_per_priority: usize,
}

impl From<&PreemptionArgs> for Rules {
    fn from(args: &PreemptionArgs) -> Self {
        Self {
            algorithm: args.algorithm.into(),
            order: args.order.into(),
            min_runtime: Duration::from_secs(args.min_runtime_seconds),
            follow_on_depth: args.follow_on_depth,
            victims: VictimRules {
                scope: args.victims.into(),
                ..VictimRules::default()
            },
            reservations_per_priority: args.reservations_per_priority,
            ..Self::default()
        }
    }
}

/// Formats of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// How victims are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AlgorithmArg {
    /// The least work lost.
    LeastCost,
    /// KEP-5710 as released.
    Kep,
}

/// What comes first when priorities and lost work disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    /// The lowest priorities whose eviction frees enough capacity.
    StrictPriority,
    /// The least work, whatever its priority.
    LeastWork,
}

/// Which work may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VictimsArg {
    /// What holds an extended resource that the gang asks for.
    Accelerators,
    /// Gangs only.
    Gangs,
    /// Everything of lower priority.
    Any,
}

impl From<VictimsArg> for VictimScope {
    fn from(victims: VictimsArg) -> Self {
        match victims {
            VictimsArg::Accelerators => Self::Accelerators,
            VictimsArg::Gangs => Self::Gangs,
            VictimsArg::Any => Self::Any,
        }
    }
}

impl From<AlgorithmArg> for engine::Algorithm {
    fn from(algorithm: AlgorithmArg) -> Self {
        match algorithm {
            AlgorithmArg::LeastCost => Self::LeastCost,
            AlgorithmArg::Kep => Self::Kep,
        }
    }
}

impl From<OrderArg> for engine::VictimOrder {
    fn from(order: OrderArg) -> Self {
        match order {
            OrderArg::StrictPriority => Self::StrictPriority,
            OrderArg::LeastWork => Self::LeastWork,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
}

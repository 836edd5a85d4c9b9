//! Commands and flags.

mod connection;
mod kubectl;
mod output;
mod preemption;
#[cfg(test)]
mod tests;
mod verbs;

use clap::{Args as _, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use connection::Connection;
pub use kubectl::{CpArgs, ExecArgs, GetArgs, MemberArgs, PortForwardArgs};
pub use output::{Format, ObjectOutput, ScreenOutput};
pub use preemption::{AlgorithmArg, OrderArg, PreemptionArgs, VictimsArg};
pub use verbs::{
    AgentsArgs, BugReportArgs, CheckpointArgs, CompletionArgs, ConvertArgs, ConvertFormat,
    DashboardArgs, DoctorArgs, DryRunArg, ExplainArgs, LogsArgs, NamespaceArgs, NodesArgs,
    QueueArgs, SnapshotArgs, StatusArgs, TopArgs, UnusedNamespace, VersionArgs, WhatifArgs,
    WriteArgs,
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

/// Most columns of a help. Longer lines are hard to read.
const COLUMNS: usize = 100;
/// Last line of each help.
const FLAGS_ELSEWHERE: &str =
    "`kubectl lockstep options` lists the flags for the connection to the cluster.";

impl Args {
    /// Parses the command line of this process.
    pub fn parse_line() -> Result<Self, clap::Error> {
        let matches = command().try_get_matches()?;
        let mut args = Self::from_arg_matches(&matches)?;
        args.connection.given = Connection::words(&matches);
        Ok(args)
    }
}

/// The command line. The help of each command leaves out the flags of the connection.
fn command() -> clap::Command {
    let mut command = Args::command()
        .max_term_width(COLUMNS)
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
        .max_term_width(COLUMNS)
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
  kubectl lockstep whatif -f gang.yaml --snapshot cluster.json.zst")]
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
    /// Run a command in the container of a member, by `kubectl exec`. Default: the first member.
    ///
    /// Replaces itself by kubectl, from PATH or the variable KUBECTL, with the same flags for the
    /// connection.
    #[command(after_help = "\
Examples:
  kubectl lockstep exec llama -it -- bash
  kubectl lockstep exec llama -n ml --rank 3 -- nvidia-smi
  kubectl lockstep exec llama --member workers-0-3 -c sidecar -- env")]
    Exec(ExecArgs),
    /// Copy files to or from the container of a member, by `kubectl cp`.
    ///
    /// A path in a member has the form NAME:PATH for the first member, and NAME/MEMBER:PATH for the
    /// member with that rank or name. The container needs the program tar.
    #[command(after_help = "\
Examples:
  kubectl lockstep cp llama:/tmp/trace.json trace.json
  kubectl lockstep cp -n ml llama/3:/tmp/trace.json trace.json
  kubectl lockstep cp config.yaml llama/workers-0-3:/tmp/config.yaml")]
    Cp(CpArgs),
    /// Forward local ports to a member, by `kubectl port-forward`. Default: the first member.
    #[command(after_help = "\
Examples:
  kubectl lockstep port-forward llama 6006
  kubectl lockstep port-forward llama -n ml --rank 3 8080:80")]
    PortForward(PortForwardArgs),
    /// List workloads, by `kubectl get trainingworkloads`, which takes all arguments. With a name: that
    /// workload.
    ///
    /// `status` shows more about one workload.
    #[command(after_help = "\
Examples:
  kubectl lockstep get -n ml
  kubectl lockstep get llama -o yaml")]
    Get(GetArgs),
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
  kubectl lockstep doctor -n ml -o json
  kubectl lockstep doctor -n ml --canary")]
    Doctor(DoctorArgs),
    /// Write an archive for a bug report: state, events, versions and configuration, without
    /// environment, arguments and annotations, and with pseudonyms for names.
    ///
    /// Default: the namespace of the context. The archive has what you may read; the command lists
    /// what is missing. It reads a fixed list of fields.
    #[command(after_help = "\
Examples:
  kubectl lockstep bug-report -A
  kubectl lockstep bug-report llama -n ml --logs --tail 200")]
    BugReport(BugReportArgs),
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
    Options(UnusedNamespace),
    /// Install completion of `kubectl lockstep` for kubectl, including names in the cluster, or print a
    /// completion script of `kubectl-lockstep` for a shell.
    #[command(after_help = "\
Examples:
  kubectl lockstep completion --kubectl /usr/local/bin
  kubectl lockstep completion bash > /etc/bash_completion.d/kubectl-lockstep")]
    Completion(CompletionArgs),
}

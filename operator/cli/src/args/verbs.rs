//! The flags of each verb.

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::{ArgAction, ArgGroup, Args, ValueEnum};
use clap_complete::Shell;

use super::connection::duration;
use super::output::{ObjectOutput, ScreenOutput};
use super::preemption::PreemptionArgs;

/// Which objects a command is about.
#[derive(Clone, Debug, Default, Args)]
pub struct NamespaceArgs {
    /// Namespace.
    #[arg(short, long, conflicts_with = "all_namespaces")]
    pub namespace: Option<String>,
    /// All namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
}

impl NamespaceArgs {
    /// The namespace to read; `None`: all. Default: the context's.
    pub fn or_of<'a>(&'a self, context: &'a str) -> Option<&'a str> {
        let namespace = self.namespace.as_deref().unwrap_or(context);
        (!self.all_namespaces).then_some(namespace)
    }
}

/// Accepted on every verb, as by kubectl. Has no effect on verbs without a namespace.
#[derive(Clone, Debug, Default, Args)]
pub struct UnusedNamespace {
    #[arg(short, long, hide = true)]
    pub namespace: Option<String>,
}

/// Flags of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Name of the TrainingWorkload.
    pub name: String,
    /// Namespace. Default: the namespace of the context.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Print the output again after each change.
    #[arg(short, long)]
    pub watch: bool,
    /// Format of the answer.
    #[command(flatten)]
    pub output: ObjectOutput,
}

/// Flags of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Name of the TrainingWorkload.
    pub name: String,
    /// Namespace. Default: the namespace of the context.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Format of the answer.
    #[command(flatten)]
    pub output: ObjectOutput,
}

/// Flags of `queue`.
#[derive(Debug, Args)]
pub struct QueueArgs {
    /// Whose gangs.
    #[command(flatten)]
    pub scope: NamespaceArgs,
    /// Only gangs of workloads with these labels; places count all gangs.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Print the output again after each change.
    #[arg(short, long)]
    pub watch: bool,
    /// Format of the answer.
    #[command(flatten)]
    pub output: ObjectOutput,
}

/// Flags of `whatif`.
#[derive(Debug, Args)]
pub struct WhatifArgs {
    /// Manifest of one TrainingWorkload, YAML or JSON; - reads standard input.
    #[arg(short, long, value_name = "FILE")]
    pub filename: PathBuf,
    /// Use this file, written by `snapshot`, instead of the cluster.
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Namespace of a manifest without namespace. Default: the namespace of the context; `default` with
    /// --snapshot.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Namespace of the manager whose configuration is used. Default: found by the labels of its
    /// Deployment.
    #[arg(long, value_name = "NAME")]
    pub manager_namespace: Option<String>,
    /// What the manager's configuration says.
    #[command(flatten)]
    pub rules: PreemptionArgs,
    /// Format of the answer.
    #[command(flatten)]
    pub output: ObjectOutput,
}

/// Flags of `snapshot`.
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// The file, replaced if it exists; - writes to standard output.
    #[arg(short, long, value_name = "FILE", default_value = "cluster.json.zst")]
    pub output: PathBuf,
    /// Replace names of nodes, namespaces, objects and groups, UIDs and values of pod labels by
    /// salted hashes. The salt is not kept. Values of node labels are kept, because selectors use
    /// them.
    #[arg(long)]
    pub hash_names: bool,
    /// Whose pods and gangs.
    #[command(flatten)]
    pub scope: NamespaceArgs,
}

/// Flags of `version`.
#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Only the version of this program, without a request to the cluster.
    #[arg(long)]
    pub client: bool,
    #[command(flatten)]
    pub unused: UnusedNamespace,
    /// Format of the answer.
    #[command(flatten)]
    pub output: ScreenOutput,
}

/// Flags of `completion`.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell.
    #[arg(required_unless_present = "kubectl", conflicts_with = "kubectl")]
    pub shell: Option<Shell>,
    /// Write the program that kubectl runs for completion (`kubectl_complete-lockstep`) into this folder.
    /// The folder must be in PATH.
    #[arg(long, value_name = "DIR")]
    pub kubectl: Option<PathBuf>,
    #[command(flatten)]
    pub unused: UnusedNamespace,
}

/// Flags of the verbs that write one field.
#[derive(Debug, Args)]
pub struct WriteArgs {
    /// Name of the TrainingWorkload.
    pub name: String,
    /// Namespace. Default: the namespace of the context.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Print the change and write nothing.
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        default_value = "none",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "client"
    )]
    pub dry_run: DryRunArg,
}

/// How far a change goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DryRunArg {
    /// It is written.
    None,
    /// Nothing is sent.
    Client,
    /// The API server checks it and does not keep it.
    Server,
}

/// Flags of `convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Namespace of the runtimes of jobs without a namespace. Default: the namespace of the context.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Manifests of jobs and their runtimes, YAML or JSON, or a folder; - reads standard input. May be repeated.
    #[arg(short, long, value_name = "FILE", required = true)]
    pub filename: Vec<PathBuf>,
    /// Format of the output. JSON has no comments: they are printed on standard error.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "yaml")]
    pub output: ConvertFormat,
}

/// Formats of manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConvertFormat {
    /// With comments.
    Yaml,
    /// Without comments.
    Json,
}

/// Flags of `checkpoint`.
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// Which workload.
    #[command(flatten)]
    pub write: WriteArgs,
    /// Wait for the outcome; --wait=false returns after the request.
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        default_value_t = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub wait: bool,
    /// Longest wait, such as 90s or 5m.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub timeout: Duration,
    /// Request nothing: record that the state was saved.
    #[arg(long, conflicts_with_all = ["wait", "timeout"])]
    pub record: bool,
    /// When the state was saved, RFC 3339. Default: now.
    #[arg(long, value_name = "TIME", value_parser = rfc3339, requires = "record")]
    pub at: Option<DateTime<Utc>>,
}

fn rfc3339(text: &str) -> Result<DateTime<Utc>, String> {
    text.parse()
        .map_err(|_| "not a time such as 2026-11-21T10:00:00Z (RFC 3339)".to_owned())
}

/// Flags of `logs`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").args(["name", "selector"]).required(true)))]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line, as kubectl has it"
)]
pub struct LogsArgs {
    /// Name of the TrainingWorkload.
    #[arg(conflicts_with = "all_namespaces")]
    pub name: Option<String>,
    /// Whose workloads. Default: those of the context's namespace.
    #[command(flatten)]
    pub scope: NamespaceArgs,
    /// All workloads with these labels. Several workloads: each line starts with its workload.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Members of this group.
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// The member with this rank, in each group or replica that counts ranks from 0.
    #[arg(long, value_name = "NUMBER")]
    pub rank: Option<i32>,
    /// The member that failed first in the last failure: the log of its failed attempt, from the
    /// container that failed.
    #[arg(long, conflicts_with_all = ["group", "rank", "all", "follow"])]
    pub failed: bool,
    /// All members, or all members of the group.
    #[arg(long)]
    pub all: bool,
    /// Begin each line with the member.
    #[arg(long)]
    pub prefix: bool,
    /// Name of a container. Default: the training container, or the failed container.
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// The previous instance of the container.
    #[arg(short, long)]
    pub previous: bool,
    /// Stream new lines.
    #[arg(short, long)]
    pub follow: bool,
    /// Number of last lines to print.
    #[arg(long, value_name = "LINES")]
    pub tail: Option<i64>,
    /// Only lines newer than this duration, such as 10m.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub since: Option<Duration>,
}

/// Flags of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Only this namespace. Default: all.
    #[command(flatten)]
    pub scope: NamespaceArgs,
    /// Only workloads with these labels.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Format of the answer.
    #[command(flatten)]
    pub output: ObjectOutput,
}

/// Flags of `agents`.
#[derive(Debug, Args)]
pub struct AgentsArgs {
    #[command(flatten)]
    pub unused: UnusedNamespace,
    /// Namespace of the agents' pods. Default: found by their labels.
    #[arg(long, value_name = "NAME")]
    pub agent_namespace: Option<String>,
    /// Format of the answer.
    #[command(flatten)]
    pub output: ObjectOutput,
}

/// Flags of `nodes`.
#[derive(Debug, Args)]
pub struct NodesArgs {
    #[command(flatten)]
    pub unused: UnusedNamespace,
    /// Namespace of the manager whose configuration is used. Default: found by the labels of its
    /// Deployment.
    #[arg(long, value_name = "NAME")]
    pub manager_namespace: Option<String>,
    /// Format of the answer.
    #[command(flatten)]
    pub output: ObjectOutput,
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Namespace in which your rights are checked. Default: the namespace of the context.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Namespace of the agents' pods. Default: found by their labels.
    #[arg(long, value_name = "NAME")]
    pub agent_namespace: Option<String>,
    /// Create a workload of one member in the namespace, wait until it runs, and remove it.
    #[arg(long)]
    pub canary: bool,
    /// Image of that member.
    #[arg(
        long,
        value_name = "IMAGE",
        default_value = "registry.k8s.io/pause:3.10",
        requires = "canary"
    )]
    pub canary_image: String,
    /// Longest wait until the member runs, such as 90s or 5m.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration, requires = "canary")]
    pub timeout: Duration,
    /// Format of the answer.
    #[command(flatten)]
    pub output: ScreenOutput,
}

/// Flags of `bug-report`.
#[derive(Debug, Args)]
pub struct BugReportArgs {
    /// Names of TrainingWorkloads. Default: all of the namespace.
    #[arg(value_name = "NAME", conflicts_with = "all_namespaces")]
    pub workloads: Vec<String>,
    /// Whose objects. Default: those of the context's namespace.
    #[command(flatten)]
    pub scope: NamespaceArgs,
    /// The archive, replaced if it exists. Pseudonyms with their names are written beside it.
    #[arg(short, long, value_name = "FILE", default_value = "bug-report.tar.gz")]
    pub output: PathBuf,
    /// Add logs and messages of containers, which may contain secrets.
    #[arg(long)]
    pub logs: bool,
    /// Number of last lines of each log.
    #[arg(long, value_name = "LINES", default_value_t = 1000, requires = "logs")]
    pub tail: i64,
    /// Keep names instead of pseudonyms.
    #[arg(long)]
    pub names: bool,
}

/// Flags of `dashboard`.
#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Which namespace. Default: all, or that of the context if you may not list workloads of all.
    #[command(flatten)]
    pub scope: NamespaceArgs,
    /// Port on this machine; 0: any free port.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// Open the page in a browser.
    #[arg(long)]
    pub open: bool,
    /// Show this file, written by `snapshot`, instead of the cluster.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["namespace", "all_namespaces"])]
    pub snapshot: Option<PathBuf>,
    /// Begin with this view: the part of a page's address from `#/` on.
    #[arg(long, value_name = "VIEW")]
    pub view: Option<String>,
}

//! The flags of the verbs that run kubectl.

use std::ffi::OsString;

use clap::Args;

/// Which member of a workload.
#[derive(Debug, Args)]
pub struct MemberArgs {
    /// Name of the TrainingWorkload.
    pub name: String,
    /// Namespace. Default: the namespace of the context.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// The member with this rank. Default: the first member.
    #[arg(long, value_name = "NUMBER", conflicts_with = "member")]
    pub rank: Option<i32>,
    /// The member with this name: GROUP-REPLICA-INDEX.
    #[arg(long, value_name = "MEMBER")]
    pub member: Option<String>,
}

impl MemberArgs {
    /// Rank or name of the member; `None`: the first member.
    pub fn choice(&self) -> Option<String> {
        let rank = self.rank.map(|rank| rank.to_string());
        rank.or_else(|| self.member.clone())
    }
}

/// Flags of `exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Which member.
    #[command(flatten)]
    pub member: MemberArgs,
    /// Name of a container. Default: the training container.
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Pass standard input to the command.
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Give the command a terminal.
    #[arg(short, long)]
    pub tty: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Flags of `cp`.
#[derive(Debug, Args)]
pub struct CpArgs {
    /// What is copied: a local path, or a path in a member, NAME:PATH or NAME/MEMBER:PATH.
    pub source: String,
    /// Where it is copied to, in the same forms. One of the two paths is local.
    pub destination: String,
    /// Namespace of the workload. Default: the namespace of the context.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Name of a container. Default: the training container.
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Keep neither owner nor permissions of copied files.
    #[arg(long)]
    pub no_preserve: bool,
    /// Number of retries of a copy from a member; -1: no limit.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub retries: Option<i32>,
}

/// Flags of `port-forward`.
#[derive(Debug, Args)]
pub struct PortForwardArgs {
    /// Which member.
    #[command(flatten)]
    pub member: MemberArgs,
    /// Ports, as in kubectl: PORT, LOCAL:REMOTE or :REMOTE.
    #[arg(required = true, value_name = "PORTS")]
    pub ports: Vec<String>,
    /// Addresses of this machine to listen on, separated by commas. Default: localhost.
    #[arg(long, value_name = "ADDRESSES")]
    pub address: Option<String>,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// Names of TrainingWorkloads, and flags of `kubectl get`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

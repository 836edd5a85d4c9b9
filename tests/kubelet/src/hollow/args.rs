//! Command line of `lockstep-hollow`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use lockstep_common::log::LogArgs;

use crate::latency::LatencyProfile;

/// Simulates nodes with node agents: registers them, or adopts nodes that others have created, renews
/// their leases, runs the pods bound to them.
///
/// Prints `hollow: ready ADDRESS` with the address of its control interface after all nodes are
/// registered. Ends on SIGTERM and, with `--exit-with-stdin`, when its standard input closes.
#[derive(Clone, Debug, Parser)]
#[command(name = "lockstep-hollow", version)]
pub struct Options {
    /// Kubeconfig of the API server. The default is that of kubectl.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Bearer token instead of the kubeconfig's identity, for example `user:hollow:system:nodes`.
    #[arg(long)]
    pub token: Option<String>,
    /// Number of nodes, named `PREFIX-0000` and up.
    #[arg(long, default_value_t = 4)]
    pub nodes: usize,
    /// Prefix of the nodes' names.
    #[arg(long, default_value = "hollow")]
    pub name_prefix: String,
    /// Number of the first node.
    #[arg(long, default_value_t = 0)]
    pub first: usize,
    /// Name of a node that another component has created, instead of new nodes; may be repeated. Its
    /// labels and taints stay as they are.
    #[arg(long = "adopt")]
    pub adopted: Vec<String>,
    /// Label of every new node, KEY=VALUE; may be repeated.
    #[arg(long = "label", value_parser = key_value)]
    pub labels: Vec<(String, String)>,
    /// Allocatable CPU of a node.
    #[arg(long, default_value = "64")]
    pub cpu: String,
    /// Allocatable memory of a node.
    #[arg(long, default_value = "512Gi")]
    pub memory: String,
    /// Accelerators of a node.
    #[arg(long, default_value = "8")]
    pub gpus: String,
    /// Resource name of the accelerators.
    #[arg(long, default_value = "nvidia.com/gpu")]
    pub gpu_resource: String,
    /// Maximum number of pods on a node.
    #[arg(long, default_value = "110")]
    pub pods: String,
    /// Racks that consecutive nodes are grouped into (label topology.kubernetes.io/rack).
    #[arg(long, default_value_t = 1)]
    pub racks: usize,
    /// Zones that consecutive racks are grouped into (label topology.kubernetes.io/zone).
    #[arg(long, default_value_t = 1)]
    pub zones: usize,
    /// Version that the kubelets report. Rules of KEP-5307 are supported from v1.35.
    #[arg(long, default_value = "v1.37.2")]
    pub kubelet_version: String,
    /// Node that does not declare RestartAllContainersOnContainerExits; may be repeated, `*` for
    /// all.
    #[arg(long)]
    pub no_restart_all: Vec<String>,
    /// Runtime of the containers.
    #[arg(long, value_enum, default_value_t = RuntimeKind::Simulated)]
    pub runtime: RuntimeKind,
    /// Folder for volumes and logs of child processes. With a real runtime, the folder that
    /// contains the root folder of each node under its name.
    #[arg(long, required_if_eq_any([("runtime", "subprocess"), ("runtime", "cri")]))]
    pub work_dir: Option<PathBuf>,
    /// Latency profile.
    #[arg(long, value_enum, default_value_t = Profile::Measured)]
    pub latency_profile: Profile,
    /// Factor on the kubelets' crash back-off (10 s doubling to 5 min).
    #[arg(long, default_value_t = 1.0)]
    pub backoff_scale: f64,
    /// Duration of a node's Lease, in seconds.
    #[arg(long, default_value_t = 40)]
    pub lease_seconds: u32,
    /// Period of its renewals, in seconds.
    #[arg(long, default_value_t = 10)]
    pub renew_seconds: u32,
    /// Arguments of the agents as in the DaemonSet, separated by spaces.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub agent_args: String,
    /// Service account of the agents, NAMESPACE:NAME.
    #[arg(long, default_value = "lockstep-agent:lockstep-agent")]
    pub agent_account: String,
    /// Namespace for the agents' pods. Without it, nodes have no agents.
    #[arg(long)]
    pub agent_pods: Option<String>,
    /// Node without an agent; may be repeated, `*` for all.
    #[arg(long)]
    pub no_agent: Vec<String>,
    /// Gives every agent a separate watch of the orders, as on real nodes. Otherwise agents share a
    /// watch, which is cheaper and otherwise equal.
    #[arg(long)]
    pub own_watches: bool,
    /// Address of the control interface; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub control: SocketAddr,
    /// Ends the process when its standard input closes, that is, when its parent has ended.
    #[arg(long)]
    pub exit_with_stdin: bool,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// A container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RuntimeKind {
    /// Entries in a table.
    Simulated,
    /// Child processes of this one.
    Subprocess,
    /// A real container runtime for each node.
    Cri,
}

/// A latency profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// As on a real node.
    Measured,
    /// Without delays.
    Zero,
}

impl Options {
    /// Names of the nodes.
    pub fn names(&self) -> Vec<String> {
        if !self.adopted.is_empty() {
            return self.adopted.clone();
        }
        (self.first..self.first + self.nodes)
            .map(|i| format!("{}-{i:04}", self.name_prefix))
            .collect()
    }

    /// The latency profile.
    pub fn profile(&self) -> LatencyProfile {
        match self.latency_profile {
            Profile::Measured => LatencyProfile::measured(),
            Profile::Zero => LatencyProfile::zero(),
        }
    }

    /// Period of lease renewals.
    pub fn renew(&self) -> Duration {
        Duration::from_secs(self.renew_seconds.into())
    }

    /// True if the node declares the feature that `RestartAllContainers` rules require.
    pub fn declares_restart_all(&self, node: &str) -> bool {
        self.minor() >= 35 && !named(&self.no_restart_all, node)
    }

    /// True if the node has an agent.
    pub fn has_agent(&self, node: &str) -> bool {
        self.agent_pods.is_some() && !named(&self.no_agent, node)
    }

    /// Minor version of the kubelets.
    pub fn minor(&self) -> u32 {
        self.kubelet_version
            .split('.')
            .nth(1)
            .and_then(|m| m.parse().ok())
            .unwrap_or(0)
    }
}

fn named(list: &[String], node: &str) -> bool {
    list.iter().any(|n| n == node || n == "*")
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("not of the form KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

//! Command line of the agent, as the `DaemonSet` writes it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser};
use lockstep_common::log::LogArgs;

use crate::cri::Socket;

/// Stops members of training workloads on order and reports their exits.
#[derive(Clone, Debug, Parser)]
#[command(name = "lockstep-agent", version = lockstep_version::LONG)]
pub struct AgentArgs {
    /// Name of the node.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Folder for records that must survive a restart of the agent, not a boot of the node: in
    /// memory, so that a full disk does not stop restarts.
    #[arg(long, value_name = "DIR", default_value = "/run/lockstep")]
    pub state_dir: PathBuf,
    /// Folder on disk in which earlier versions kept these records. They are moved once.
    #[arg(long, value_name = "DIR")]
    pub former_state_dir: Option<PathBuf>,
    /// Unix socket of the container runtime.
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "unix:///run/containerd/containerd.sock"
    )]
    pub runtime_endpoint: Socket,
    /// Folder of the kubelet; the agent reaches the supervisors of pods in it.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// UID of the agent's own pod, to check that the folder belongs to its own kubelet.
    #[arg(long, value_name = "UID", env = "POD_UID")]
    pub pod_uid: Option<String>,
    /// Connect to supervisors.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub supervise: bool,
    /// Kubeconfig. Default: the environment's, else the service account of the pod.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of /healthz and /readyz.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8081")]
    pub health_address: SocketAddr,
    /// Address of /metrics.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    pub metrics_address: SocketAddr,
    /// Changes within this many milliseconds share one write of the NodeAgent.
    #[arg(long, default_value_t = 20)]
    pub debounce_millis: u64,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

impl AgentArgs {
    pub fn debounce(&self) -> Duration {
        Duration::from_millis(self.debounce_millis)
    }
}

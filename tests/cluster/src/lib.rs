//! A cluster to test against: the programs of a Kubernetes control plane, hollow nodes, and the operator, installed as a user installs it and started with what was installed.
//!
//! | module | content |
//! |---|---|
//! | [`cluster`] | the control plane with the operator installed and running |
//! | [`install`], [`helm`], `olm` | `kubectl apply -k`, the chart, or what OLM makes of the bundle, and what the applied Deployment and DaemonSet say about arguments, env and files |
//! | [`scenario`] | one test: a namespace and nodes of its own on a shared cluster |
//! | [`nodes`] | hollow nodes and their control interface |
//! | [`karpenter`] | a real Karpenter, whose nodes are hollow |
//! | [`autoscaler`] | Cluster Autoscaler as a test plays it, whose nodes are hollow |
//! | [`kueue`] | a real Kueue with its webhooks |
//! | [`audit`], [`roles`] | who wrote what, and whether the shipped roles fit the calls made |
//! | [`control_plane`], `tokens` | the programs of the control plane, and its bearer tokens |
//! | [`stage`] | progress and results of a demonstration |
//! | [`prometheus`], [`pages`] | a Prometheus over the managers, and pages that draw the dashboards from it |
//! | [`proxy`] | faults between a component and the API server |
//! | [`process`], [`reaper`] | processes that never outlive the test |
//! | [`manifests`], [`wait`], [`http`] | small tools |

pub mod audit;
pub mod autoscaler;
pub mod cluster;
pub mod control_plane;
pub mod helm;
pub mod http;
pub mod install;
pub mod karpenter;
pub mod kueue;
pub mod manifests;
pub mod nodes;
pub mod olm;
pub mod pages;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod reaper;
pub mod roles;
pub mod scenario;
pub mod stage;
mod tokens;
pub mod wait;

/// Arguments of `kubectl` for looking around in the cluster of a demonstration. Without `doctor`,
/// which would warn about the manager's pods: the managers are processes of this machine.
pub const LOOK_AROUND: [&str; 4] = [
    "get tw -A -o wide",
    "lockstep queue",
    "lockstep top -A",
    "lockstep agents",
];

pub use cluster::{Cluster, Options, programs};
pub use scenario::{Scenario, scenario};
pub use wait::{eventually, time_of_day};

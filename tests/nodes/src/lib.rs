//! A Kubernetes cluster with real nodes on this machine: Kubernetes' control plane, kubelets,
//! containerd, CNI and DNS. Programs that use it run under `inside.sh`, in namespaces that end with
//! the cluster.
//!
//! ```text
//!  inside.sh: network namespace with bridge br0, 10.77.0.1/16
//!  │  API server :443 (also 10.96.0.1, the Service kubernetes) · CoreDNS 10.96.0.10 · etcd, controllers, scheduler, test
//!  ├─ veth n1 ── node.sh: namespaces of node n1, 10.77.0.11: containerd, kubelet ── bridge cni0 ── pods 10.77.11.x
//!  ├─ veth n2 ── ...
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`real_cluster`] | the cluster with the operator installed |
//! | [`node`] | one node: its link, its programs, reboots |
//! | [`images`] | development binaries packed into images |
//! | [`incidents`] | what happens to members and nodes, and what has to hold afterwards |
//! | [`arms`], [`figures`] | restarts by tier, and the table of their times |

pub mod arms;
pub mod figures;
pub mod images;
pub mod incidents;
pub mod node;
pub mod real_cluster;

pub use node::Node;
pub use real_cluster::{Images, RealCluster};

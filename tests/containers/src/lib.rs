//! Real containers for tests: containerds in separate folders, calls of a kubelet, and nodes with
//! agents and a training job.
//!
//! Needs root, and runc as distributions package it (`make node-packages`). containerd is that of
//! `tests/kubernetes/build.sh nodes`; `LOCKSTEP_CONTAINERD=DIR` names a folder with another
//! `containerd`, its shim and `ctr`.
//!
//! | module | content |
//! |---|---|
//! | [`containerd`], [`config`] | a runtime and the images in it |
//! | [`kubelet`] | single calls of a kubelet, for tests of the agent alone |
//! | [`fleet`] | nodes: a containerd and an agent each, under the kubelet model |
//! | [`images`], `daemon_set` | what `make image` has written, and the agents out of it |
//! | [`job`] | the trainer as a workload, and what its members note |

pub mod config;
pub mod containerd;
mod daemon_set;
pub mod fleet;
pub mod images;
pub mod job;
pub mod kubelet;
pub mod processes;

pub use containerd::Containerd;
pub use fleet::Fleet;
pub use job::Job;
pub use kubelet::{Kubelet, Pod};
pub use lockstep_kubelet::runtime::cri::api;

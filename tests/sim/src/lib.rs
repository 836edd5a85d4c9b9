//! One steppable cluster in memory, for tests: what is real of the product runs for real, and what
//! is around it follows the rules of Kubernetes that the product counts on.
//!
//! | module | content | whose |
//! |---|---|---|
//! | [`cluster`] | [`SimCluster`]: who runs next, time, crashes, coming to rest | |
//! | [`api`] | the API server: objects, the rules of every write, refusals, watches, a log of all writes | modelled |
//! | `manager` | index, queue, workload controller, scheduler, clients | the product's (`lockstep_manager::stepped`) |
//! | [`nodes`] | kubelets over a pretended runtime; agents; training processes that tell their progress | the kubelet model; the product's decisions and supervisor |
//! | [`kube_scheduler`] | binds and refuses, in the recorded words | modelled |
//! | `controllers` | garbage collection | modelled |
//! | `objects`, [`pods`], [`signals`] | what users do to objects; what happens to containers; what is announced about nodes | helper |
//! | [`solo`] | a scenario with one workload: its view of the cluster | helper |
//! | [`phases`] | that workload in each phase | helper |
//! | [`gangs`] | a scenario with many gangs: their placements | helper |
//! | [`trouble`] | what goes wrong in clusters, and stories made of it | generator |
//! | [`oracle`] | what must hold after every step, and at rest | oracle |
//! | [`clock`] | the time of all of them | |
//!
//! Nothing here reads a clock or waits: the same seed and the same calls give the same log. What is
//! not modelled: CEL rules and schema defaults of the CRDs, preemption by kube-scheduler itself,
//! taint-based eviction, events, the lease.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a scenario that asks for what is not there has failed"
)]

pub mod api;
pub mod clock;
pub mod cluster;
mod controllers;
pub mod gangs;
pub mod kube_scheduler;
pub mod kueue;
mod manager;
pub mod nodes;
mod objects;
pub mod oracle;
pub mod phases;
pub mod pods;
pub mod signals;
pub mod solo;
pub mod trouble;

pub use cluster::{Actor, SimCluster};
pub use gangs::{Gangs, Spec};
pub use lockstep_api::key::Key;
pub use lockstep_kubelet::runtime::ReportedProgress;
pub use lockstep_manager::stepped::{CycleSummary, WatchedKind};
pub use nodes::{NodeFaults, SimNode};
pub use solo::Solo;

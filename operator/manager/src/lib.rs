//! The manager of Lockstep: watches -> index -> decide -> act -> status.
//!
//! | stage | module | client |
//! | --- | --- | --- |
//! | watch objects, keep them in tables | `index` | yes |
//! | choose the workloads that need a pass | `queue`, `resync`, `node_health` | no |
//! | decide, act, write the status | [`workload`] | in `workload::act` alone |
//! | place gangs, preempt | `scheduler` | in `scheduler::act` alone |
//! | check that admission policies allow the manager's writes | [`policy_check`] | yes |
//! | elect the leader | `lease` | in `lease::task` alone |
//! | connections, errors, preconditions | [`api`] | yes |
//! | apply objects that OLM's bundle cannot contain | [`components`] | yes |
//! | run the same stages step by step in simulations, without tasks | [`stepped`] | given |

pub mod api;
pub mod clock;
pub mod components;
pub mod config;
mod deadline;
mod discovery;
mod encode;
mod events;
mod gauges;
pub mod health;
mod index;
mod lease;
pub mod metrics;
mod node_health;
pub mod policy_check;
pub mod process;
mod provisioning;
mod queue;
mod resync;
mod run;
pub mod scheduler;
mod server_version;
pub mod stepped;
mod time_conversion;
mod upstream_scheduling;
pub mod workload;

pub use run::{Deps, RunError, run};

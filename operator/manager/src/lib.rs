//! The manager of Lockstep: watches -> index -> decide -> act -> status.
//!
//! | stage | module | client |
//! |---|---|---|
//! | watch and hold what is there | `index` | yes |
//! | which workload needs a pass | `queue`, `resync` | no |
//! | decide, act, write the status | [`workload`] | in `workload::act` alone |
//! | place gangs, preempt | `scheduler` | in `scheduler::act` alone |
//! | do admission policies let it write | [`policy_check`] | yes |
//! | who may act | `lease` | in `lease::task` alone |
//! | connections, errors, preconditions | [`api`] | yes |
//! | what OLM's bundle may not hold, applied by a deployment of its own | [`components`] | yes |
//! | the same without tasks, step by step, for simulations | [`stepped`] | given |

pub mod api;
pub mod clock;
pub mod components;
pub mod config;
mod deadline;
mod encode;
mod events;
mod gauges;
pub mod health;
mod index;
mod lease;
mod merge;
pub mod metrics;
pub mod policy_check;
pub mod process;
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

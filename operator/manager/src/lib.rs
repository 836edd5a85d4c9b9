//! The manager of Lockstep: watches -> index -> decide -> act -> status.
//!
//! | stage | module | client |
//! |---|---|---|
//! | watch and hold what is there | [`index`] | yes |
//! | which workload needs a pass | [`queue`] | no |
//! | decide, act, write the status | [`workload`] | in `workload::act` alone |
//! | place gangs, preempt | [`scheduler`] | in `scheduler::act` alone |
//! | who may act | [`lease`] | in `lease::task` alone |

pub mod clients;
pub mod clock;
pub mod config;
mod edge;
pub mod events;
mod gauges;
pub mod index;
pub mod lease;
mod merge;
pub mod metrics;
mod native;
pub mod queue;
mod run;
pub mod scheduler;
pub mod server;
pub mod workload;

pub use run::{Deps, RunError, run};

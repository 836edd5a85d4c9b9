//! The gang scheduler: one loop over the index that gives gangs their room, and takes it from others where they must go.
//!
//! | stage | module | client |
//! |---|---|---|
//! | what there is: nodes, pods, gangs | [`scene`], [`case`] | no |
//! | what becomes of placements that exist | `upkeep`, `intent` | no |
//! | who gets room next, for whom of it, and at whose expense | `admit`, `elastic` | no |
//! | the decision as a list of requests | [`decide`] | no |
//! | sending them | `act` | yes |
//! | waking up, waiting for own writes | [`task`] | in `act` alone |
//!
//! A pass is a function of what is seen and of the time. Its memory ([`Memory`]) may be lost at any moment: what must
//! survive is in the status of the pod groups, the placement (the reservation) and the intent to preempt.
//!
//! A pass first writes what it has decided into the status and acts on a decision only once it is there: an intent to
//! preempt is persisted, and the preemptor's gated pods exist, before anybody is evicted.

mod act;
mod admit;
mod case;
mod decide;
mod elastic;
mod intent;
mod memory;
mod messages;
mod pass;
mod scene;
pub mod task;
#[cfg(test)]
mod tests;
mod upkeep;

use std::time::Duration;

use lockstep_engine::{Algorithm, Order};
use lockstep_model::{CostModel, Rules};

use crate::config;

pub use decide::{Plan, Step, decide};
pub use memory::Memory;
pub use scene::Scene;

/// How long budgets may refuse an eviction before the pod is deleted, where the configuration allows that: long enough
/// for a budget that is about to allow it.
const DELETE_AFTER: Duration = Duration::from_secs(30);

/// Constants of the scheduler.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How victims are chosen, weighed and protected.
    pub rules: Rules,
    /// How long kube-scheduler may refuse a pinned pod before its gang is placed elsewhere.
    pub refused_after: Duration,
    /// How long a gang stays away from a node that refused one of its pods.
    pub avoid_refused: Duration,
    /// How long evictions of a foreign pod may be refused by its budgets before it is deleted (KEP-5710 spares budgets
    /// only as far as possible); `None`: never.
    pub delete_after: Option<Duration>,
    /// Time between two attempts of a request that was refused.
    pub retry: Duration,
    /// Searches for victims that one pass makes at most; the others follow in the next pass.
    pub searches_per_pass: usize,
    /// Shortest time between two messages that tell a waiting gang what is short.
    pub message_interval: Duration,
    /// How long a gang runs without incident before it takes free room for more of its members.
    pub grow_after: Duration,
    /// Changes that arrive within this time are looked at together.
    pub debounce: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            refused_after: Duration::from_secs(5),
            avoid_refused: Duration::from_mins(10),
            delete_after: None,
            retry: Duration::from_secs(1),
            searches_per_pass: 4,
            message_interval: Duration::from_secs(5),
            grow_after: Duration::from_mins(10),
            debounce: Duration::from_millis(20),
        }
    }
}

impl From<&config::Scheduler> for Settings {
    fn from(config: &config::Scheduler) -> Self {
        let preemption = &config.preemption;
        let seconds = |span| i64::try_from(config::time(span).as_secs()).unwrap_or(i64::MAX);
        let rules = Rules {
            algorithm: match preemption.algorithm {
                config::Algorithm::LeastCost => Algorithm::LeastCost,
                config::Algorithm::Kep => Algorithm::Kep,
            },
            order: match preemption.order {
                config::Order::StrictPriority => Order::StrictPriority,
                config::Order::LeastWork => Order::LeastWork,
            },
            follow_on_depth: preemption.follow_on_depth,
            min_runtime: Duration::from_secs(preemption.min_runtime_seconds),
            costs: CostModel {
                accelerators: config.accelerators.clone(),
                cpu_weight_milli: preemption.cpu_weight_milli,
                restart_overhead_seconds: seconds(preemption.restart_overhead),
                cap_seconds: seconds(preemption.lost_work_cap),
            },
            ..Rules::default()
        };
        Self {
            rules,
            refused_after: config::time(config.refused_pin),
            avoid_refused: config::time(config.refused_pin_memory),
            delete_after: preemption.delete_when_eviction_is_refused.then_some(DELETE_AFTER),
            grow_after: config::time(config.grow_after),
            debounce: config::time(config.debounce),
            ..Self::default()
        }
    }
}

//! Constants of the scheduler.

use std::num::NonZeroU32;
use std::time::Duration;

use lockstep_model::Rules;

/// Constants of the scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulerSettings {
    /// How victims are chosen, weighed and protected.
    pub rules: Rules,
    /// Whether work may be evicted for gangs.
    pub preemption_enabled: bool,
    /// How many pods may be evicted within a minute; `None`: any number.
    pub max_evictions_per_minute: Option<NonZeroU32>,
    /// How long kube-scheduler may refuse a pinned pod before its gang is placed elsewhere.
    pub refused_after: Duration,
    /// How long a gang stays away from a node that refused one of its pods.
    pub avoid_refused: Duration,
    /// How long evictions of a foreign pod may be refused by its budgets before it is deleted
    /// (KEP-5710 spares budgets only as far as possible); `None`: never.
    pub delete_after: Option<Duration>,
    /// How long victims may take to go, after the preemption was decided and beyond the grace
    /// periods of those that are leaving, before the preemption is withdrawn.
    pub intent_deadline: Duration,
    /// How long a gang whose victims are gone waits for a scheduler to bind or refuse its next pod, before
    /// the preemption is given up: longer than kube-scheduler waits for volumes, 10 min (`bindTimeoutSeconds`).
    pub binding_deadline: Duration,
    /// Time between two attempts of a request that was refused.
    pub retry: Duration,
    /// Searches for victims that one cycle makes at most; the others follow in the next cycle.
    pub searches_per_cycle: usize,
    /// Shortest time between two messages that tell a waiting gang what is short.
    pub message_interval: Duration,
    /// How long a gang runs without incident before it takes free capacity for more of its members.
    pub grow_after: Duration,
    /// Whether kube-scheduler keeps nominations that others make, as since Kubernetes 1.34 (KEP-5278). Where
    /// it drops them, the pods of a preemptor stay gated until its victims are gone.
    pub keeps_nominations: bool,
    /// Changes that arrive within this time are looked at together.
    pub debounce: Duration,
    /// The same where cycles take long and come to nothing.
    pub gather_at_most: Duration,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            preemption_enabled: true,
            max_evictions_per_minute: None,
            refused_after: Duration::from_secs(5),
            avoid_refused: Duration::from_mins(10),
            delete_after: None,
            intent_deadline: Duration::from_mins(5),
            binding_deadline: Duration::from_mins(15),
            retry: Duration::from_secs(1),
            searches_per_cycle: 4,
            message_interval: Duration::from_secs(5),
            grow_after: Duration::from_mins(10),
            keeps_nominations: true,
            debounce: Duration::from_millis(20),
            gather_at_most: Duration::from_millis(500),
        }
    }
}

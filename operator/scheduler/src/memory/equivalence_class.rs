//! Waiting gangs with equal requests, which share a verdict.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_engine::Demand;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Request {
    /// Members that the gang needs to run. Work may be preempted for them.
    Required,
    /// Optional members. They take free capacity only.
    Growth,
    /// Other nodes for members of a running gang that leave their nodes.
    Move {
        /// True if all members of the gang may change their nodes.
        whole: bool,
    },
}

/// Everything that a verdict depends on, except events.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EquivalenceClass {
    pub demand: Demand,
    pub request: Request,
    pub namespace: Arc<str>,
    pub preempts: bool,
    pub preemption_priority: Option<i32>,
    /// True if a holder of a reservation could evict the gang at once.
    pub evictable: bool,
    pub ahead: usize,
    /// Number of these reservations that start only after the deadline of the gang.
    pub later: usize,
    /// Start of the open try of its node demand: it may keep nodes that were created later.
    pub demanded: Option<DateTime<Utc>>,
    /// UID of the pod group, if the gang shares its verdict with no gang.
    pub only: Option<String>,
}

impl EquivalenceClass {
    /// The class of a single gang, whatever is reserved ahead of it.
    pub fn of_one(self, uid: &str) -> Self {
        Self {
            ahead: 0,
            later: 0,
            only: Some(uid.to_owned()),
            ..self
        }
    }
}

//! Waiting gangs with equal requests, which share a verdict.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_engine::Demand;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Request {
    /// Members that the gang needs to run. Work may be preempted for them.
    Required,
    /// Optional members. They take free capacity only.
    Growth,
}

/// Everything that decides the verdict about a gang without a history.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EquivalenceClass {
    pub demand: Demand,
    pub request: Request,
    pub namespace: Arc<str>,
    pub preempts: bool,
    pub preemption_priority: Option<i32>,
    pub ends: Option<DateTime<Utc>>,
    /// Number of reservations ahead of the gang.
    pub ahead: usize,
}

//! What a verdict about a waiting gang depends on, of the gang.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_engine::Demand;

/// For what a gang asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Request {
    /// Members without which it is useless: work may be preempted for them.
    Required,
    /// Members that it would like besides: they take free capacity only.
    Growth,
}

/// All that a verdict about a gang without a history of its own depends on, of the gang.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asks {
    pub demand: Demand,
    pub request: Request,
    pub namespace: Arc<str>,
    pub preempts: bool,
    pub preemption_priority: Option<i32>,
    pub ends: Option<DateTime<Utc>>,
    /// Reservations ahead of it when it is judged.
    pub ahead: usize,
}

//! The restart budget.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::TrainingWorkload;
use lockstep_api::workload::TrainingWorkloadStatus;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartsLeft {
    pub left: i64,
    pub of: i64,
    pub window_seconds: i64,
}

pub fn left(
    workload: &TrainingWorkload,
    status: &TrainingWorkloadStatus,
    now: DateTime<Utc>,
) -> RestartsLeft {
    let limits = &workload.spec.failure_policy.limits;
    let window = TimeDelta::seconds(limits.window_seconds);
    let counted = status.restarts.counted_at.iter();
    let used = counted.filter(|at| **at + window > now).count();
    let of = i64::from(limits.max_restarts);
    RestartsLeft {
        left: (of - used as i64).max(0),
        of,
        window_seconds: limits.window_seconds,
    }
}

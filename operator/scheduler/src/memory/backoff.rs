//! Exponential back-off.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::scheduling::NodeDemand;
use lockstep_api::time::doubling;

/// Back-off after the first refused placement.
const FIRST: TimeDelta = TimeDelta::seconds(5);
const LONGEST: TimeDelta = TimeDelta::minutes(5);
/// Back-off after the first failed preemption.
const FIRST_PREEMPTION: TimeDelta = TimeDelta::minutes(10);
const LONGEST_PREEMPTION: TimeDelta = TimeDelta::hours(24);

/// Wait after the first failed try of a node demand, and tries after which no more follow.
const FIRST_DEMAND: TimeDelta = TimeDelta::minutes(10);
const DEMANDS: i32 = 3;

/// Time of the try after a failed one. `None` while a try is open, and after the last one.
pub(crate) fn next_try_at(demand: &NodeDemand) -> Option<DateTime<Utc>> {
    let failed_at = demand.failed_at.filter(|_| demand.number < DEMANDS)?;
    Some(failed_at + doubling(FIRST_DEMAND, TimeDelta::MAX, demand.number))
}

/// `tries` counts from 1.
pub(crate) fn backoff(tries: i32) -> TimeDelta {
    doubling(FIRST, LONGEST, tries)
}

/// `failures`: consecutive failed preemptions, from 1.
pub(crate) fn preemption_backoff(failures: i32) -> TimeDelta {
    doubling(FIRST_PREEMPTION, LONGEST_PREEMPTION, failures)
}

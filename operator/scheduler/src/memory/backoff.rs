//! Exponential back-off.

use chrono::TimeDelta;
use lockstep_api::time::doubling;

/// Back-off after the first refused placement.
const FIRST: TimeDelta = TimeDelta::seconds(5);
const LONGEST: TimeDelta = TimeDelta::minutes(5);
/// Back-off after the first failed preemption.
const FIRST_PREEMPTION: TimeDelta = TimeDelta::minutes(10);
const LONGEST_PREEMPTION: TimeDelta = TimeDelta::hours(24);

/// `tries` counts from 1.
pub(crate) fn backoff(tries: i32) -> TimeDelta {
    doubling(FIRST, LONGEST, tries)
}

/// `failures`: consecutive failed preemptions, from 1.
pub(crate) fn preemption_backoff(failures: i32) -> TimeDelta {
    doubling(FIRST_PREEMPTION, LONGEST_PREEMPTION, failures)
}

//! The time between two tries.

use chrono::TimeDelta;

/// Time between the first placement that is refused and the next.
const FIRST: TimeDelta = TimeDelta::seconds(5);
/// Longest time between two placements.
const LONGEST: TimeDelta = TimeDelta::minutes(5);
/// Time between the first preemption that fails and the next.
const FIRST_PREEMPTION: TimeDelta = TimeDelta::minutes(10);
/// Longest time between two preemptions.
const LONGEST_PREEMPTION: TimeDelta = TimeDelta::hours(24);

/// Time between a try, the first of which is number 1, and the next.
pub(crate) fn backoff(tries: i32) -> TimeDelta {
    doubling(FIRST, LONGEST, tries)
}

/// Time between a failed preemption, the first of which is number 1, and the next.
pub(crate) fn preemption_backoff(failures: i32) -> TimeDelta {
    doubling(FIRST_PREEMPTION, LONGEST_PREEMPTION, failures)
}

fn doubling(first: TimeDelta, longest: TimeDelta, tries: i32) -> TimeDelta {
    let doublings = u32::try_from(tries.saturating_sub(1)).unwrap_or(0);
    let seconds = first.num_seconds();
    let seconds = seconds.saturating_mul(2_i64.saturating_pow(doublings));
    TimeDelta::seconds(seconds.min(longest.num_seconds()))
}

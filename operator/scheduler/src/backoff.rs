//! The time between two tries.

use chrono::TimeDelta;

/// Seconds between the first try and the next; each further one doubles it.
const FIRST: i64 = 5;
/// Longest time between two tries, in seconds.
const LONGEST: i64 = 300;

/// Time between a try, the first of which is number 1, and the next.
pub(crate) fn backoff(tries: i32) -> TimeDelta {
    let doublings = u32::try_from(tries.saturating_sub(1)).unwrap_or(0);
    let seconds = FIRST.saturating_mul(2_i64.saturating_pow(doublings));
    TimeDelta::seconds(seconds.min(LONGEST))
}

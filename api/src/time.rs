//! Times of Kubernetes as chrono times, and exponential back-off.

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};

/// Converts a time with microsecond precision; `None` if it is out of chrono's range.
pub fn utc(time: &Time) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(time.0.as_microsecond())
}

/// The same for times with microseconds.
pub fn utc_micro(time: &MicroTime) -> Option<DateTime<Utc>> {
    utc(&Time(time.0))
}

/// The wait after `n` failures: doubles from `first` up to `max`. Zero for `n` = 0.
pub fn doubling(first: TimeDelta, max: TimeDelta, n: i32) -> TimeDelta {
    match n {
        ..=0 => TimeDelta::zero(),
        // 2^20 s exceed every maximum. More doublings could overflow.
        n => first
            .checked_mul(1 << (n - 1).min(20))
            .map_or(max, |wait| wait.min(max)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_from_the_first_to_the_maximum() {
        let (first, max) = (TimeDelta::seconds(10), TimeDelta::minutes(5));
        let waits: Vec<i64> = (0..8)
            .map(|n| doubling(first, max, n).num_seconds())
            .collect();
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(doubling(first, max, i32::MAX), max);
    }
}

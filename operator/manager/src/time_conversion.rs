//! Conversions between our times (chrono) and those of Kubernetes' types (jiff). Our API, decisions
//! and status use chrono; only what crosses to and from `k8s-openapi` types passes here.

use chrono::{DateTime, Utc};
use jiff::Timestamp;

/// For Kubernetes types. Times beyond jiff's range (year 9999) become its limit.
pub fn to_jiff(time: DateTime<Utc>) -> Timestamp {
    Timestamp::new(
        time.timestamp(),
        i32::try_from(time.timestamp_subsec_nanos()).unwrap_or_default(),
    )
    .unwrap_or(Timestamp::MAX)
}

/// From Kubernetes types.
pub fn to_chrono(time: Timestamp) -> DateTime<Utc> {
    DateTime::from_timestamp(
        time.as_second(),
        u32::try_from(time.subsec_nanosecond()).unwrap_or_default(),
    )
    .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_survives_the_way_to_kubernetes_and_back() {
        let time = DateTime::from_timestamp(1_795_000_000, 123_456_000).unwrap();
        assert_eq!(to_chrono(to_jiff(time)), time);
    }
}

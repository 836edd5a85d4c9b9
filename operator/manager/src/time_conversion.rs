//! Converts chrono times, used by Lockstep, to Kubernetes' jiff times. [`lockstep_api::time`]
//! converts back.

use chrono::{DateTime, Utc};
use jiff::Timestamp;

/// Times beyond jiff's range (year 9999) become its limit.
pub fn to_jiff(time: DateTime<Utc>) -> Timestamp {
    Timestamp::new(
        time.timestamp(),
        i32::try_from(time.timestamp_subsec_nanos()).unwrap_or_default(),
    )
    .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use lockstep_api::time::utc;

    use super::*;

    #[test]
    fn a_time_survives_the_way_to_kubernetes_and_back() {
        let time = DateTime::from_timestamp(1_795_000_000, 123_456_000).unwrap();
        assert_eq!(utc(&Time(to_jiff(time))), Some(time));
    }
}

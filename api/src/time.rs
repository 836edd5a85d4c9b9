//! Times of Kubernetes as ours.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};

/// A time of the API server's, to the microsecond; absent beyond the range of chrono.
pub fn utc(time: &Time) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(time.0.as_microsecond())
}

/// The same for times that have microseconds.
pub fn utc_micro(time: &MicroTime) -> Option<DateTime<Utc>> {
    utc(&Time(time.0))
}

//! Conversion of Kubernetes times to chrono.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};

/// Converts a time with microsecond precision; `None` if it is out of chrono's range.
pub fn utc(time: &Time) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(time.0.as_microsecond())
}

/// The same for times with microseconds.
pub fn utc_micro(time: &MicroTime) -> Option<DateTime<Utc>> {
    utc(&Time(time.0))
}

//! Builders for tests.

use lockstep_api::workload::TrainingWorkloadSpec;
use serde_json::Value;

/// A spec from its JSON.
pub(crate) fn spec(value: Value) -> TrainingWorkloadSpec {
    serde_json::from_value(value).unwrap()
}

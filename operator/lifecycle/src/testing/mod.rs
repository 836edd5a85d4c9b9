//! Builders for tests, and a whole cluster in memory: API objects, a scheduler, kubelets and the
//! real agents' decisions.

mod node;
mod scheduler;
mod world;

use lockstep_api::workload::TrainingWorkloadSpec;
use serde_json::Value;

pub(crate) use node::SimNode;
pub(crate) use world::{SimPod, World};

/// A spec from its JSON.
pub(crate) fn spec(value: Value) -> TrainingWorkloadSpec {
    serde_json::from_value(value).unwrap()
}

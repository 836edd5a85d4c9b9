//! Scenarios over the cluster in memory.

mod property;

use serde_json::{Value, json};

/// A workload of one group of `n` single-member replicas that restarts in place.
fn gang(n: i32) -> Value {
    json!({
        "groups": [{"name": "g", "replicas": n, "template": {"spec": {"containers": [{"name": "t", "image": "i",
            "resources": {"limits": {"nvidia.com/gpu": 8}}}]}}}],
        "failurePolicy": {"inPlace": {"withoutSupervisor": "Allow"}},
    })
}

/// The same with more of the spec, merged at the top.
fn gang_with(n: i32, more: &Value) -> Value {
    let mut spec = gang(n);
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        let old = &mut spec[&key];
        match (old.as_object_mut(), value.as_object()) {
            (Some(old), Some(new)) => old.extend(new.clone()),
            _ => *old = value,
        }
    }
    spec
}

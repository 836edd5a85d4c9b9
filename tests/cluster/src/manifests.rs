//! Manifests as JSON values with defaults.

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Node label that keeps the workloads of a scenario on its nodes.
pub const POOL: &str = "lockstep.test/pool";

/// A gang of one group `workers` with `members` pods of `gpus` accelerators each. `patch` (a JSON
/// merge patch: lists are replaced, null removes) changes its spec. In-place restarts are allowed
/// without a supervisor.
pub fn gang(name: &str, members: i32, gpus: i32, patch: Value) -> Value {
    let mut object = json!({
        "apiVersion": "training.lockstep.dev/v1alpha1",
        "kind": "TrainingWorkload",
        "metadata": {"name": name},
        "spec": {
            "groups": [group("workers", members, gpus)],
            "failurePolicy": {"inPlace": {"withoutSupervisor": "Allow"}},
        },
    });
    merge(&mut object["spec"], patch);
    object
}

/// A group of single-pod replicas.
pub fn group(name: &str, members: i32, gpus: i32) -> Value {
    json!({
        "name": name,
        "replicas": members,
        "template": {"spec": {
            // Deleted members end at once. Tests of the grace period set another value.
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "trainer", "image": "registry.example/trainer:1",
                            "command": ["train"],
                            "resources": {"limits": {"nvidia.com/gpu": gpus}}}],
        }},
    })
}

/// A manifest written as YAML.
pub fn parse(yaml: &str) -> Result<Value> {
    serde_saphyr::from_str(yaml).context("a manifest in YAML")
}

/// Applies a JSON merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: Value) {
    let Value::Object(fields) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        if let (Value::Object(map), true) = (&mut *target, value.is_null()) {
            map.remove(&key);
        } else {
            merge(&mut target[&key], value);
        }
    }
}

/// Keeps all pods of an object (a workload's groups, or a plain pod) on the nodes of a pool.
pub fn pin_to_pool(object: &mut Value, pool: &str) {
    let pinned = json!({"nodeSelector": {POOL: pool}});
    match object["kind"].as_str() {
        Some("TrainingWorkload") => {
            for group in object["spec"]["groups"]
                .as_array_mut()
                .into_iter()
                .flatten()
            {
                merge(&mut group["template"]["spec"], pinned.clone());
            }
        }
        Some("Pod") => merge(&mut object["spec"], pinned),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_replaces_lists_merges_objects_and_removes_nulls() {
        let mut v = json!({"a": {"b": 1, "c": [1]}, "d": 2});
        merge(&mut v, json!({"a": {"c": [2]}, "d": null}));
        assert_eq!(v, json!({"a": {"b": 1, "c": [2]}}));
    }
}

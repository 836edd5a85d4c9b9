use lockstep_api::names::short_hash;
use lockstep_api::workload::TrainingWorkloadSpec;
use serde_json::{Value, json};

use super::env::DEFAULT_PORT;

/// A pod with another hash of the spec is replaced. The hash excludes replica counts and fields
/// that may change while members run.
///
/// Absent and empty fields hash alike, so that a new optional field restarts no workload on
/// upgrade.
pub fn spec_hash(spec: &TrainingWorkloadSpec) -> String {
    let groups: Vec<Value> = spec
        .groups
        .iter()
        .map(|g| json!({"name": g.name, "size": g.size, "template": g.template, "dependsOn": g.depends_on}))
        .collect();
    let mut value = json!({
        "groups": groups,
        "priorityClassName": spec.priority_class_name,
        "policy": spec.scheduling.policy,
        "scope": spec.scheduling.gang.scope,
        // One level hashes as before the field had several.
        "topology": match &*spec.scheduling.levels() {
            [level] => json!(level),
            levels => json!(levels),
        },
        "disruptionMode": spec.scheduling.disruption_mode,
        "preemptionPolicy": spec.scheduling.preemption_policy,
        "rules": spec.failure_policy.rules,
        "restartScope": spec.failure_policy.restart_scope,
        "withoutSupervisor": spec.failure_policy.in_place.without_supervisor,
        // Absent for the defaults, so that workloads of older versions keep their hash.
        "supervisor": changed(spec.failure_policy.in_place.supervisor),
        "sharedMemory": changed(spec.failure_policy.in_place.shared_memory),
        "stopGraceSeconds": changed(spec.failure_policy.in_place.stop_grace_seconds),
        "network": spec.network,
    });
    // Definitions of older versions fill in the default port.
    value["network"]["port"] = spec.network.port.unwrap_or(DEFAULT_PORT).into();
    prune(&mut value);
    short_hash(&[&value.to_string()])
}

/// `None` for the default.
fn changed<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(prune);
            fields.retain(|_, v| !is_empty(v));
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl Fn(&mut Value)) -> String {
        let mut v = json!({"groups": [{"name": "a", "replicas": 2, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}]});
        change(&mut v);
        spec_hash(&serde_json::from_value(v).unwrap())
    }

    #[test]
    fn what_may_change_while_running_does_not_change_the_hash() {
        let base = with(|_| {});
        assert_eq!(with(|v| v["groups"][0]["replicas"] = json!(5)), base);
        assert_eq!(with(|v| v["replicas"] = json!(5)), base);
        assert_eq!(with(|v| v["suspend"] = json!(true)), base);
        assert_eq!(with(|v| v["restartNonce"] = json!(7)), base);
        assert_eq!(
            with(|v| v["failurePolicy"] =
                json!({"limits": {"maxRestarts": 1}, "nodeLostSeconds": 5})),
            base
        );
        assert_eq!(with(|v| v["activeDeadlineSeconds"] = json!(9)), base);
    }

    #[test]
    fn the_default_port_of_older_definitions_does_not_change_the_hash() {
        let filled_in = with(|v| v["network"] = json!({"port": 29500}));
        assert_eq!(filled_in, with(|_| {}));
    }

    #[test]
    fn what_pods_are_made_from_changes_the_hash() {
        let base = with(|_| {});
        assert_ne!(
            with(|v| v["groups"][0]["template"]["spec"]["containers"][0]["image"] = json!("j")),
            base
        );
        assert_ne!(with(|v| v["groups"][0]["size"] = json!(2)), base);
        assert_ne!(with(|v| v["network"] = json!({"port": 4000})), base);
        assert_ne!(with(|v| v["priorityClassName"] = json!("high")), base);
        let in_place = |v: Value| with(|w| w["failurePolicy"] = json!({"inPlace": v}));
        assert_ne!(in_place(json!({"sharedMemory": "Keep"})), base);
        assert_ne!(in_place(json!({"stopGraceSeconds": 5})), base);
        assert_eq!(in_place(json!({"sharedMemory": "CleanKnown"})), base);
    }

    #[test]
    fn an_empty_optional_field_hashes_like_an_absent_one() {
        let base = with(|_| {});
        assert_eq!(
            with(|v| v["groups"][0]["template"]["metadata"] = json!({"labels": {}})),
            base
        );
        assert_eq!(
            with(|v| v["groups"][0]["template"]["spec"]["volumes"] = json!([])),
            base
        );
    }
}

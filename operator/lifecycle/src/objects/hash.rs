use lockstep_api::names::short_hash;
use lockstep_api::workload::TrainingWorkloadSpec;
use serde_json::{Value, json};

use super::env::DEFAULT_PORT;

/// Version of [`spec_hash`]. A change of the hash of any spec needs another version, or an upgrade
/// replaces all pods.
const VERSION: &str = "1";

/// True if two hashes have one version and name different specs. Hashes of different versions are
/// not comparable: the spec of running members is immutable, so it is the same. An empty hash names
/// no spec.
pub(crate) fn names_other_spec(a: &str, b: &str) -> bool {
    let version = |hash: &str| hash.split_once('-').map(|(version, _)| version.to_owned());
    a != b && (a.is_empty() || b.is_empty() || version(a) == version(b))
}

/// A pod with another hash of the spec is replaced, unless [the versions differ](names_other_spec).
/// The hash excludes replica counts and fields that may change while members run.
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
    format!("{VERSION}-{}", short_hash(&[&value.to_string()]))
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

    /// A change of any of these hashes needs another [`VERSION`].
    #[test]
    fn the_hash_of_a_spec_is_the_same_in_all_releases() {
        assert_eq!(with(|_| {}), "1-522615f8");
        let full = with(|v| {
            v["groups"] = json!([
                {"name": "a", "replicas": 2, "size": 4, "template": {
                    "metadata": {"labels": {"team": "x"}, "annotations": {"note": "y"}},
                    "spec": {
                        "containers": [{"name": "c", "image": "i", "command": ["train"], "args": ["--fast"],
                            "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                            "ports": [{"containerPort": 80}], "securityContext": {"runAsUser": 7},
                            "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
                            "resources": {"limits": {"nvidia.com/gpu": "8", "memory": "64Gi"}, "requests": {"cpu": 2}},
                            "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": true}]}],
                        "initContainers": [{"name": "log", "image": "l", "restartPolicy": "Always"}],
                        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
                        "tolerations": [{"key": "gpu", "operator": "Exists"}],
                        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}]}}},
                        "nodeSelector": {"disk": "fast"}, "terminationGracePeriodSeconds": 60, "hostNetwork": true}}},
                {"name": "b", "dependsOn": [{"group": "a"}], "template": {"spec": {"containers": [{"name": "c", "image": "j"}]}}}]);
            v["priorityClassName"] = json!("high");
            v["scheduling"] = json!({"gang": {"scope": "Replica"}, "disruptionMode": "Single", "preemptionPolicy": "Never",
                "topology": {"required": "zone"}});
            v["failurePolicy"] = json!({"restartScope": "Replica", "rules": [{"name": "r", "action": "FailWorkload",
                    "match": {"exitCodes": {"operator": "In", "values": [3]}}}],
                "inPlace": {"withoutSupervisor": "Allow", "supervisor": "Never", "sharedMemory": "Keep", "stopGraceSeconds": 5}});
            v["network"] = json!({"port": 4000, "subdomain": "s"});
        });
        assert_eq!(full, "1-a1d02c80");
    }

    #[test]
    fn only_hashes_of_one_version_name_different_specs() {
        for (a, b, other) in [
            ("1-a", "1-a", false),
            ("1-a", "1-b", true),
            ("1-a", "2-b", false),
            ("1-a", "b", false),
            ("a", "b", true),
            ("1-a", "", true),
        ] {
            assert_eq!(
                (names_other_spec(a, b), names_other_spec(b, a)),
                (other, other),
                "{a} {b}"
            );
        }
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

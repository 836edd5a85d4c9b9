//! Workloads of many shapes. The head of the suite lists what is not varied.

use serde_json::{Value, json};

use crate::api::merge;

use super::{CLASSES, NAMESPACE};

/// A workload chosen by the numbers.
pub fn workload(name: &str, rng: &mut fastrand::Rng) -> Value {
    let (class, _) = CLASSES[rng.usize(..CLASSES.len())];
    let basic = rng.u8(..10) < 2;
    let scope = ["Workload", "Workload", "Workload", "Replica", "Group"][rng.usize(..5)];
    let scope = if basic { "Workload" } else { scope };
    let groups = 1 + usize::from(rng.u8(..10) < 3);
    let mut groups: Vec<Value> = (0..groups).map(|at| group(name, at, rng)).collect();
    if (basic || scope != "Workload") && rng.u8(..3) < 2 {
        let condition = ["Ready", "Ready", "Succeeded"][rng.usize(..3)];
        // Members with a command get supervisors.
        if rng.bool() {
            for group in &mut groups {
                group["template"]["spec"]["containers"][0]["command"] = json!(["train"]);
            }
        }
        for second in groups.iter_mut().skip(1) {
            second["dependsOn"] = json!([{"group": "a", "condition": condition}]);
        }
    }
    let mut spec = json!({
        "priorityClassName": class,
        "groups": groups,
        "scheduling": {"policy": if basic { "Basic" } else { "Gang" }, "gang": {"scope": scope}},
        "failurePolicy": failure_policy(rng),
    });
    if !basic && scope == "Workload" && rng.u8(..10) < 2 {
        spec["scheduling"]["gang"]["minCount"] = json!(1);
    }
    if !basic && rng.u8(..10) < 2 {
        spec["scheduling"]["disruptionMode"] = json!("Single");
    }
    if rng.u8(..10) < 1 {
        spec["scheduling"]["preemptionPolicy"] = json!("Never");
    }
    json!({
        "apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec,
    })
}

fn group(workload: &str, at: usize, rng: &mut fastrand::Rng) -> Value {
    let size = 1 + i32::from(rng.u8(..10) < 2);
    json!({
        "name": (["a", "b"][at]),
        "replicas": rng.i32(1..4),
        "size": size,
        "template": {"metadata": {"labels": {"app": workload}}, "spec": pod_spec(workload, rng)},
    })
}

/// The pods of a group. One in three has constraints that placement does not or hardly see.
fn pod_spec(workload: &str, rng: &mut fastrand::Rng) -> Value {
    let gpus = [0, 1, 1, 1, 2, 2, 3, 4][rng.usize(..8)];
    let mut limits = json!({"cpu": (["1", "2", "8"][rng.usize(..3)])});
    if gpus > 0 {
        limits["nvidia.com/gpu"] = json!(gpus.to_string());
    }
    if rng.u8(..10) < 2 {
        limits["rdma/hca"] = json!("1");
    }
    let mut container = json!({"name": "c", "image": "i", "resources": {"limits": limits}});
    let mut spec = json!({"restartPolicy": "Never"});
    let own = json!({"matchLabels": {"app": workload}});
    let required = |key: &str| {
        let term = json!({"topologyKey": key, "labelSelector": own});
        json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]})
    };
    match rng.u8(..28) {
        0 => container["ports"] = json!([{"containerPort": 8080, "hostPort": 8080}]),
        1 => spec["affinity"] = json!({"podAntiAffinity": required("kubernetes.io/hostname")}),
        2 | 3 => {
            let claim = json!({"claimName": format!("data-{workload}")});
            spec["volumes"] = json!([{"name": "data", "persistentVolumeClaim": claim}]);
        }
        4 => spec["nodeSelector"] = json!({"zone": (["z0", "z1"][rng.usize(..2)])}),
        5 => spec["nodeSelector"] = json!({"zone": "nowhere"}),
        6 => {
            spec["initContainers"] = json!([{"name": "init", "image": "i"}]);
        }
        7 => spec["affinity"] = json!({"podAntiAffinity": required("zone")}),
        8 => spec["affinity"] = json!({"podAffinity": required("zone")}),
        9 | 10 => {
            // A pin leaves one domain to a constraint that honors it.
            let policy = ["Honor", "Ignore", "Ignore"][rng.usize(..3)];
            spec["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule", "nodeAffinityPolicy": policy, "labelSelector": own}]);
        }
        11 => {
            spec["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "gpu"}]);
        }
        _ => {}
    }
    match rng.u8(..8) {
        0 => spec["terminationGracePeriodSeconds"] = json!(0),
        1 => spec["terminationGracePeriodSeconds"] = json!(5),
        // Longer than any deadline.
        2 => spec["terminationGracePeriodSeconds"] = json!(900),
        _ => {}
    }
    let log = json!({"name": "log", "image": "i"});
    spec["containers"] = match rng.u8(..8) {
        0 => json!([container, log]),
        _ => json!([container]),
    };
    spec
}

fn failure_policy(rng: &mut fastrand::Rng) -> Value {
    let mut policy = json!({
        "inPlace": {"withoutSupervisor": if rng.bool() { "Allow" } else { "Deny" }},
        "limits": {"maxRestarts": if rng.u8(..4) == 0 { 3 } else { 100 }},
    });
    let more = match rng.u8(..10) {
        0 => json!({"rules": [
            {"name": "recreate", "match": {"exitCodes": {"operator": "In", "values": [9]}}, "action": "RecreateGang"},
            {"name": "elsewhere", "match": {"exitCodes": {"operator": "In", "values": [3]}}, "action": "RestartGang",
             "failedMember": "ReplaceElsewhere", "avoidSeconds": 20}]}),
        1 => json!({"rules": [
            {"name": "free", "match": {"exitCodes": {"operator": "In", "values": [42]}}, "action": "RestartGang", "counted": false},
            {"name": "fatal", "match": {"exitCodes": {"operator": "In", "values": [9]}}, "action": "FailWorkload"}]}),
        2 => json!({"rules": [
            {"name": "fine", "match": {"exitCodes": {"operator": "In", "values": [3, 42]}}, "action": "Ignore"}]}),
        3 => json!({"restartScope": "Replica"}),
        4 => json!({"replacementTimeoutSeconds": 60}),
        _ => json!({}),
    };
    merge(&mut policy, &more);
    policy
}

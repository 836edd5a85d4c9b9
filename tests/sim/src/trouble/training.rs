//! Workloads whose members report progress, and their faults.

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Pod;
use lockstep_manager::stepped::WatchedKind;
use serde_json::{Value, json};

use super::users::free_name;
use super::{CLASSES, NAMESPACE, one_of};
use crate::SimCluster;
use crate::nodes::{First, PROGRESS_STARTUP, PROGRESS_TIMEOUT, Pace, TELLS};

pub(super) fn new_trainer(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let Some(name) = free_name(c) else {
        return false;
    };
    let object = trainer(&name, rng);
    let made = c
        .store()
        .create("user", WatchedKind::TrainingWorkload, object, false);
    made.is_ok()
}

/// A supervised gang whose members report progress.
fn trainer(name: &str, rng: &mut fastrand::Rng) -> Value {
    let first = [First::AtOnce, First::WithItsFirstStep][rng.usize(..2)].as_str();
    let gpus = ["0", "1", "1"][rng.usize(..3)];
    let mut container = json!({"name": "c", "image": "i", "command": ["train"],
        "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": gpus}}});
    let reactions = [
        "save", "save", "save", "save", "ignore", "0", "143", "7", "",
    ];
    let reaction = reactions[rng.usize(..reactions.len())];
    if !reaction.is_empty() {
        let millis = [0, 3_000, 40_000][rng.usize(..3)].to_string();
        container["env"] = json!([{"name": "HOLLOW_ON_CHECKPOINT", "value": reaction},
            {"name": "HOLLOW_CHECKPOINT_MILLIS", "value": millis}]);
    }
    let pod = json!({"restartPolicy": "Never", "containers": [container],
        "terminationGracePeriodSeconds": ([0, 5, 30, 60, 60][rng.usize(..5)])});
    let template = json!({"metadata": {"annotations": {TELLS: first}}, "spec": pod});
    let scope = ["Workload", "Workload", "Replica"][rng.usize(..3)];
    let rule =
        |action: &str| json!([{"name": "hangs", "match": {"reasons": ["Hang"]}, "action": action}]);
    let rules = match rng.u8(..8) {
        0 => rule("RestartContainer"),
        1 => rule("RecreateGang"),
        2 => rule("FailWorkload"),
        _ => json!([]),
    };
    let mut on_request = json!({"timeoutSeconds": ([5, 30][rng.usize(..2)])});
    if reaction == "143" {
        on_request["signal"] = json!("SIGTERM");
    }
    json!({
        "apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "checkpoint": {"onRequest": on_request},
            "priorityClassName": CLASSES[rng.usize(..CLASSES.len())].0,
            "groups": [{"name": "a", "replicas": rng.i32(1..4), "template": template}],
            "scheduling": {"policy": "Gang", "gang": {"scope": scope}},
            "failurePolicy": {
                "inPlace": {"withoutSupervisor": "Deny"},
                "limits": {"maxRestarts": 100},
                "progress": {"timeoutSeconds": PROGRESS_TIMEOUT, "startupSeconds": PROGRESS_STARTUP},
                "rules": rules,
            },
        },
    })
}

/// Node and UID of a pod whose training process makes steps.
fn any_steady(c: &SimCluster, rng: &mut fastrand::Rng) -> Option<(String, String)> {
    let steady = c.lives().filter(|l| l.is_steady());
    let pods = c.list::<Pod>();
    let node = |uid: &String| {
        let pod = pods.iter().find(|p| p.metadata.uid.as_ref() == Some(uid))?;
        pod.spec.as_ref()?.node_name.clone()
    };
    let found = steady.filter_map(|l| Some((node(&l.pod.uid)?, l.pod.uid.clone())));
    one_of(found.collect(), rng)
}

fn goes_on(c: &mut SimCluster, rng: &mut fastrand::Rng, pace: Pace) -> Option<(String, String)> {
    let (node, uid) = any_steady(c, rng)?;
    c.node(&node).set_pace(&uid, pace).then_some((node, uid))
}

pub(super) fn stalls(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    goes_on(c, rng, Pace::Stalled).is_some()
}

pub(super) fn slows_down(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    goes_on(c, rng, Pace::Slow).is_some()
}

pub(super) fn only_saves(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    goes_on(c, rng, Pace::OnlySaves).is_some()
}

pub(super) fn never_begins(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let Some((node, uid)) = any_steady(c, rng) else {
        return false;
    };
    let mut pods = c.list::<Pod>();
    pods.retain(|p| p.metadata.uid.as_ref() == Some(&uid));
    c.node(&node).never_begins(&uid);
    pods.iter().any(|pod| c.exit_pod(pod, 1))
}

pub(super) fn stalls_unheard(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let Some((node, _)) = goes_on(c, rng, Pace::Stalled) else {
        return false;
    };
    let silent = c.node(&node).faults.silent_agent;
    c.fault(&node, |f| f.silent_agent = true);
    c.agent(&node);
    // Sometimes longer than its supervisor waits for the agent.
    let away = PROGRESS_STARTUP + [5, 5, 90][rng.usize(..3)];
    c.advance(TimeDelta::seconds(away));
    c.kubelet(&node);
    c.fault(&node, |f| f.silent_agent = silent);
    true
}

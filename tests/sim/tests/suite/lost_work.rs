//! Work that preemptions destroy in a busy cluster, with and without requests for checkpoints.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::TrainingWorkload;
use lockstep_api::workload::Phase;
use lockstep_lifecycle::LifecycleSettings;
use lockstep_sim::nodes::node;
use lockstep_sim::pods::member_of;
use lockstep_sim::{Key, SimCluster, WatchedKind};
use serde_json::{Value, json};

const NODES: usize = 4;
/// Each gang fills a node.
const GPUS: i32 = 8;
const TURN: TimeDelta = TimeDelta::seconds(5);
/// Simulated hours; `SIM_HOURS` overrides them.
const HOURS: i64 = 2;
/// Steps of one turn each between two regular checkpoints: half an hour.
const SAVES_EVERY: u64 = 360;
/// Seconds between two gangs of high priority, and how long each runs.
const ARRIVES_EVERY: i64 = 1260;
const RUNS_FOR: i64 = 600;

fn workload(name: &str, class: &str, nodes: i32, more: &Value) -> Value {
    let container = json!({"name": "c", "image": "i", "command": ["train"],
        "resources": {"limits": {"nvidia.com/gpu": "2"}},
        "env": [{"name": "HOLLOW_ON_CHECKPOINT", "value": "save"},
            {"name": "HOLLOW_CHECKPOINT_MILLIS", "value": "20000"}]});
    let mut spec = json!({
        "priorityClassName": class,
        "groups": [{"name": "g", "replicas": 4 * nodes, "template": {"spec": {"containers": [container]}}}],
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": name, "namespace": "ml"}, "spec": spec})
}

/// The training of a gang: pod and attempt of its first member, and its step.
type Training = BTreeMap<String, (String, u64)>;

/// Each running gang makes a step. A new process continues at its last checkpoint.
fn step(c: &mut SimCluster, training: &mut Training) {
    let pods = c.list::<Pod>();
    for workload in c.list::<TrainingWorkload>() {
        let status = workload.status.unwrap_or_default();
        if status.phase != Some(Phase::Running) {
            continue;
        }
        let uid = workload.metadata.uid.unwrap_or_default();
        let first = pods.iter().find(|pod| {
            let mut owners = pod.metadata.owner_references.iter().flatten();
            owners.any(|o| o.uid == uid) && member_of(pod).is_some_and(|m| m.replica == 0)
        });
        let Some(first) = first else { continue };
        let process = format!("{:?} {}", first.metadata.uid, status.attempt);
        let saved = status.progress.and_then(|p| p.checkpoint_step);
        let saved = saved.map_or(0, i64::unsigned_abs);
        let (of, step) = training.entry(uid).or_default();
        if *of != process {
            (*of, *step) = (process, saved);
        }
        *step += 1;
        let regular = *step / SAVES_EVERY * SAVES_EVERY;
        c.progress(first, *step, Some(regular.max(saved)).filter(|s| *s > 0));
    }
}

/// Lost accelerator-seconds of the gangs of low priority, and their preemptions.
fn lost(hours: i64, asks: bool) -> (i64, i64) {
    let mut c = SimCluster::with_settings(
        1,
        LifecycleSettings {
            supervisor_image: Some("lockstep-supervisor".into()),
            ..LifecycleSettings::default()
        },
    );
    for at in 0..NODES {
        let gpus = GPUS.to_string();
        let resources = [("nvidia.com/gpu", gpus.as_str())];
        c.add_node(node(&format!("n{at}"), &resources, &json!({})));
    }
    let create = |c: &mut SimCluster, kind, object: Value| {
        let made = c.store().create("user", kind, object, false);
        assert!(made.is_ok());
    };
    for (name, value) in [("low", 10), ("high", 100)] {
        let class = json!({"metadata": {"name": name}, "value": value});
        create(&mut c, WatchedKind::PriorityClass, class);
    }
    let more = if asks {
        json!({"checkpoint": {"onRequest": {}}})
    } else {
        json!({})
    };
    for at in 0..NODES {
        let object = workload(&format!("train-{at}"), "low", 1, &more);
        create(&mut c, WatchedKind::TrainingWorkload, object);
    }
    let (mut training, begun) = (Training::new(), c.now());
    let mut urgent = 0;
    while c.now() - begun < TimeDelta::hours(hours) {
        let second = (c.now() - begun).num_seconds();
        let name = format!("urgent-{urgent}");
        if second >= (urgent + 1) * ARRIVES_EVERY + RUNS_FOR {
            c.delete(WatchedKind::TrainingWorkload, &Key::new("ml", &name));
            urgent += 1;
        } else if second >= (urgent + 1) * ARRIVES_EVERY
            && c.get::<TrainingWorkload>(&Key::new("ml", &name)).is_none()
        {
            let nodes = i32::try_from(1 + urgent % 2).unwrap();
            let object = workload(&name, "high", nodes, &json!({}));
            create(&mut c, WatchedKind::TrainingWorkload, object);
        }
        step(&mut c, &mut training);
        c.round();
        c.advance(TURN);
    }
    let all = c.list::<TrainingWorkload>().into_iter();
    let low = all.filter(|w| {
        w.metadata
            .name
            .as_deref()
            .is_some_and(|n| n.starts_with("train"))
    });
    let statuses = low.filter_map(|w| w.status);
    statuses.fold((0, 0), |(lost, times), s| {
        let of = s.accounting.lost_accelerator_seconds;
        (lost + of, times + s.preemptions)
    })
}

#[test]
fn requests_for_checkpoints_save_most_of_the_work_that_preemptions_destroy() {
    let given = std::env::var("SIM_HOURS").ok().and_then(|n| n.parse().ok());
    let hours = given.unwrap_or(HOURS);
    let (with, without) = (lost(hours, true), lost(hours, false));
    println!(
        "{hours} h on {NODES} nodes of {GPUS} GPUs; lost accelerator-seconds and preemptions:"
    );
    println!("without requests {without:?}, with requests {with:?}");
    println!("ratio {:.3}", with.0 as f64 / without.0.max(1) as f64);
    assert!(without.1.min(with.1) >= 2 * hours, "{without:?}, {with:?}");
    assert!(4 * with.0 < without.0, "{without:?}, {with:?}");
}

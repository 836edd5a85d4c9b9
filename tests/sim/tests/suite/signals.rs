//! Moves of gangs away from nodes with signals, with the whole manager.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use lockstep_api::NodeHealthMode;
use lockstep_api::condition::reasons;
use lockstep_api::workload::{CheckpointOutcome, CheckpointRequest, Phase, TrainingWorkloadStatus};
use lockstep_lifecycle::LifecycleSettings;
use lockstep_sim::api::Verb;
use lockstep_sim::nodes::node;
use lockstep_sim::signals::{ACTIVE_MAINTENANCE, KARPENTER};
use lockstep_sim::{Gangs, SimCluster, Spec, WatchedKind};
use serde_json::{Value, json};

use crate::LOW;

/// Racks of four nodes of two accelerators, in mode Act. Training containers have supervisors.
fn racks(racks: usize) -> Gangs {
    let mut cluster = SimCluster::with_settings(
        0,
        LifecycleSettings {
            supervisor_image: Some("lockstep-supervisor".into()),
            ..LifecycleSettings::default()
        },
    );
    for at in 0..4 * racks {
        let rack = json!({"rack": format!("r{}", at / 4)});
        cluster.add_node(node(
            &format!("n{at:02}"),
            &[("nvidia.com/gpu", "2")],
            &rack,
        ));
    }
    cluster.set_node_health(NodeHealthMode::Act);
    Gangs { cluster }
}

/// A gang of members that save on request within 5 s.
fn saving_gang(world: &mut Gangs, name: &str, members: i32) {
    let env = json!([{"name": "HOLLOW_ON_CHECKPOINT", "value": "save"},
        {"name": "HOLLOW_CHECKPOINT_MILLIS", "value": "5000"}]);
    let container = json!({"name": "c", "image": "i", "command": ["train"], "env": env,
        "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let more = json!({
        "checkpoint": {"onRequest": {"timeoutSeconds": 30}},
        "groups": [{"name": "g", "replicas": members, "template": {"spec": {"containers": [container]}}}],
    });
    world.gang_with(name, Spec { members, ..LOW }, &more);
    world.settle();
    for pod in world.pods_of(name) {
        world.progress(&pod, 7, None);
    }
    world.settle();
    assert_eq!(status(world, name).phase, Some(Phase::Running));
}

fn status(world: &Gangs, name: &str) -> TrainingWorkloadStatus {
    world.workload(name).status.unwrap_or_default()
}

fn nodes(world: &Gangs, name: &str) -> BTreeSet<String> {
    world.nodes(name).into_iter().collect()
}

/// Lets time pass in turns of five seconds.
fn pass(world: &mut Gangs, time: TimeDelta) {
    let end = world.now() + time;
    while world.now() < end {
        world.round();
        world.advance(TimeDelta::seconds(5));
    }
}

/// Number of restarts of a gang.
fn restarts(world: &Gangs, name: &str) -> i64 {
    let status = status(world, name);
    assert_eq!(status.restarts.counted, 0, "moves are not counted");
    status.attempt - 1
}

/// All requests to a gang, in their order, each with its last state.
fn requests(world: &Gangs, name: &str) -> Vec<CheckpointRequest> {
    let mut all: BTreeMap<_, CheckpointRequest> = BTreeMap::new();
    for (_, after) in changes(world, name) {
        let requests = after
            .domains
            .into_iter()
            .filter_map(|d| d.checkpoint_request);
        all.extend(requests.map(|r| (r.requested_at, r)));
    }
    all.into_values().collect()
}

/// Each written status of a gang with the one before.
fn changes(world: &Gangs, name: &str) -> Vec<(TrainingWorkloadStatus, TrainingWorkloadStatus)> {
    let store = world.store();
    let writes = store.log.iter().filter(|write| {
        let of_status =
            write.kind == WatchedKind::TrainingWorkload && write.verb == Verb::UpdateStatus;
        of_status && *write.key.name == *name
    });
    let read = |object: &Value| serde_json::from_value(object["status"].clone()).unwrap();
    let mut before = TrainingWorkloadStatus::default();
    let mut out = Vec::new();
    for write in writes {
        let after: TrainingWorkloadStatus = read(&write.object);
        out.push((std::mem::replace(&mut before, after.clone()), after));
    }
    out
}

/// Number of events of a gang with this reason.
fn events(world: &Gangs, name: &str, reason: &str) -> usize {
    let spec = world.workload(name).spec;
    let changes = changes(world, name);
    let events = changes
        .iter()
        .flat_map(|(before, after)| lockstep_lifecycle::transitions(&spec, before, after));
    events.filter(|event| event.reason == reason).count()
}

#[test]
fn a_rack_that_is_announced_node_by_node_is_left_in_one_restart() {
    for minutes in [20, 120] {
        let mut world = racks(2);
        saving_gang(&mut world, "first", 8);
        let rack = nodes(&world, "first");
        assert_eq!(rack.len(), 4);
        for name in &rack {
            world.announce_maintenance(name, TimeDelta::minutes(minutes));
            pass(&mut world, TimeDelta::seconds(150));
        }
        pass(&mut world, TimeDelta::minutes(minutes));
        assert_eq!(restarts(&world, "first"), 1);
        assert!(nodes(&world, "first").is_disjoint(&rack));
        let saved = requests(&world, "first");
        let outcomes: Vec<_> = saved.iter().map(|r| r.outcome).collect();
        assert_eq!(outcomes, [Some(CheckpointOutcome::Saved)]);
    }
}

#[test]
fn nothing_moves_if_many_nodes_are_faulty_at_once() {
    let mut world = racks(5);
    let gangs: Vec<String> = (0..6).map(|at| format!("gang-{at}")).collect();
    for name in &gangs {
        saving_gang(&mut world, name, 2);
    }
    let before: Vec<_> = gangs.iter().map(|name| nodes(&world, name)).collect();
    let faulty: Vec<String> = before.iter().flatten().cloned().collect();
    assert_eq!(faulty.len(), 6);
    for name in &faulty {
        world.report_node_condition(name, "GpuNvlinkWatch", "True", "NvlinkDown");
    }
    pass(&mut world, TimeDelta::hours(2));
    for (name, before) in gangs.iter().zip(&before) {
        assert_eq!((restarts(&world, name), &nodes(&world, name)), (0, before));
        assert_eq!(events(&world, name, reasons::NODE_FAULTY), 1);
        assert_eq!(requests(&world, name), []);
    }
}

#[test]
fn all_gangs_save_if_many_nodes_leave_within_minutes() {
    let mut world = racks(5);
    let gangs: Vec<String> = (0..6).map(|at| format!("gang-{at}")).collect();
    for name in &gangs {
        saving_gang(&mut world, name, 2);
    }
    let left: Vec<String> = gangs.iter().flat_map(|name| nodes(&world, name)).collect();
    assert_eq!(left.len(), 6);
    for name in &left {
        world.announce_maintenance(name, TimeDelta::minutes(15));
        pass(&mut world, TimeDelta::seconds(20));
    }
    let mut most = 0;
    for _ in 0..240 {
        pass(&mut world, TimeDelta::seconds(5));
        let begun = |name: &&String| {
            let moving = world.ledger(name).moving;
            moving.is_some_and(|m| m.is_open() && m.began_at.is_some())
        };
        most = most.max(gangs.iter().filter(begun).count());
    }
    assert!((1..=2).contains(&most), "{most} gangs were stopped at once");
    for name in &gangs {
        assert_eq!(restarts(&world, name), 1);
        let outcomes: Vec<_> = requests(&world, name).iter().map(|r| r.outcome).collect();
        assert_eq!(outcomes, [Some(CheckpointOutcome::Saved)], "{name}");
        assert!(nodes(&world, name).iter().all(|node| !left.contains(node)));
    }
}

#[test]
fn nothing_moves_while_a_device_plugin_restarts_on_all_nodes() {
    let mut world = racks(2);
    saving_gang(&mut world, "first", 8);
    let before = nodes(&world, "first");
    for (gpus, minutes) in [(0, 30), (2, 30)] {
        for name in world.node_names() {
            world.node(&name, gpus, true);
        }
        pass(&mut world, TimeDelta::minutes(minutes));
        assert_eq!(restarts(&world, "first"), 0);
        assert_eq!(nodes(&world, "first"), before);
    }
}

#[test]
fn a_taint_withdrawn_before_the_stop_moves_nothing_and_the_next_moves_once() {
    let mut world = racks(2);
    saving_gang(&mut world, "first", 2);
    let before = nodes(&world, "first");
    let left = before.first().unwrap().clone();
    for after in [3, 12] {
        world.taint_node(&left, KARPENTER, true);
        for _ in 0..after {
            world.round();
            world.later(1);
        }
        world.taint_node(&left, KARPENTER, false);
        pass(&mut world, TimeDelta::minutes(10));
        assert_eq!(
            (restarts(&world, "first"), nodes(&world, "first")),
            (0, before.clone())
        );
    }
    world.taint_node(&left, KARPENTER, true);
    pass(&mut world, TimeDelta::hours(1));
    assert_eq!(restarts(&world, "first"), 1);
    assert!(!nodes(&world, "first").contains(&left));
}

#[test]
fn a_restart_for_a_failure_leaves_a_suspect_node_once_if_others_are_free() {
    for (nodes_free, left) in [(true, true), (false, false)] {
        let mut world = racks(1);
        saving_gang(&mut world, "first", if nodes_free { 2 } else { 8 });
        let suspect = nodes(&world, "first").first().unwrap().clone();
        world.report_node_condition(&suspect, "XIDErrors", "True", "Xid");
        pass(&mut world, TimeDelta::minutes(2));
        assert!(nodes(&world, "first").contains(&suspect));
        for turn in 0..2 {
            let pod = world.pods_of("first").remove(0);
            assert!(world.exit_pod(&pod, 1));
            pass(&mut world, TimeDelta::minutes(2));
            let of = status(&world, "first");
            assert_eq!(of.phase, Some(Phase::Running));
            assert_eq!(!nodes(&world, "first").contains(&suspect), left);
            let new_pods = of.history[0].recreated > 0;
            assert_eq!(new_pods, left && turn == 0, "{:?}", of.history[0]);
        }
        assert_eq!(status(&world, "first").restarts.counted, 2);
    }
}

#[test]
fn a_gang_does_not_return_to_a_node_while_its_signal_stands() {
    let mut world = racks(2);
    saving_gang(&mut world, "first", 2);
    let left = nodes(&world, "first").first().unwrap().clone();
    // No taint: only the signal keeps the gang away.
    world.label_node(&left, ACTIVE_MAINTENANCE, Some("ONGOING"));
    pass(&mut world, TimeDelta::minutes(2));
    for _ in 0..6 {
        let now = nodes(&world, "first");
        assert!(!now.contains(&left), "{now:?}");
        world.edit("first", |w| w.spec.restart_nonce += 1);
        pass(&mut world, TimeDelta::minutes(10));
        world.edit("first", |w| w.spec.suspend = true);
        pass(&mut world, TimeDelta::minutes(2));
        world.edit("first", |w| w.spec.suspend = false);
        pass(&mut world, TimeDelta::minutes(2));
    }
    assert_eq!(status(&world, "first").phase, Some(Phase::Running));
}

#[test]
fn a_gang_without_other_nodes_saves_once_before_the_deadline_and_runs_on() {
    let mut world = racks(1);
    saving_gang(&mut world, "first", 8);
    let (before, begun) = (nodes(&world, "first"), world.now());
    let deadline = TimeDelta::minutes(30);
    world.announce_maintenance("n00", deadline);
    pass(&mut world, TimeDelta::hours(1));
    assert_eq!(
        (restarts(&world, "first"), nodes(&world, "first")),
        (0, before)
    );
    let requests = requests(&world, "first");
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(requests[0].outcome, Some(CheckpointOutcome::Saved));
    let left = begun + deadline - requests[0].requested_at;
    assert!((60..300).contains(&left.num_seconds()), "{left}");
    assert_eq!(events(&world, "first", reasons::MOVE_STAYED), 1);
}

#[test]
fn a_gang_does_not_move_to_nodes_that_leave_as_early() {
    let mut world = racks(2);
    saving_gang(&mut world, "first", 2);
    let before = nodes(&world, "first");
    for name in world.node_names() {
        world.announce_maintenance(&name, TimeDelta::minutes(30));
    }
    pass(&mut world, TimeDelta::hours(1));
    assert_eq!(
        (restarts(&world, "first"), nodes(&world, "first")),
        (0, before)
    );
    assert_eq!(requests(&world, "first").len(), 1);
}

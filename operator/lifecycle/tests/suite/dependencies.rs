//! Groups that depend on other groups, after the first start: the dependency is preempted,
//! suspended, restarted, loses a node or succeeds.

use lockstep_api::workload::{CauseKind, FailureAction, Phase, TrainingWorkloadStatus};
use lockstep_sim::Solo;
use lockstep_sim::solo::gang;
use serde_json::{Value, json};

/// Workers with accelerators, and a launcher without, which depends on them.
fn launcher() -> Value {
    let mut spec = gang(2);
    spec["groups"][0]["name"] = json!("worker");
    spec["scheduling"] = json!({"gang": {"scope": "Group"}});
    spec["failurePolicy"] = json!({"limits": {"maxRestarts": 3}});
    depends(&mut spec, "launcher", "worker", 0);
    spec
}

/// Adds a group of one member with this number of accelerators, which depends on another group.
fn depends(spec: &mut Value, name: &str, on: &str, gpus: i64) {
    let mut group = spec["groups"][0].clone();
    let limits = &mut group["template"]["spec"]["containers"][0]["resources"]["limits"];
    *limits = if gpus == 0 {
        json!({"cpu": "100m"})
    } else {
        json!({"nvidia.com/gpu": gpus.to_string()})
    };
    group["name"] = json!(name);
    group["replicas"] = json!(1);
    group["dependsOn"] = json!([{"group": on}]);
    spec["groups"].as_array_mut().unwrap().push(group);
}

fn settled(spec: Value, supervised: bool) -> Solo {
    let mut w = Solo::supervised_if(supervised, spec);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    w
}

/// No node has accelerators.
fn without_capacity(w: &mut Solo) {
    for node in w.node_names() {
        w.capacity(&node, 0);
    }
}

fn with_capacity(w: &mut Solo) {
    for node in w.node_names() {
        w.capacity(&node, 2);
    }
}

/// True if the training container of a group's first member runs a process.
fn runs(w: &mut Solo, group: &str) -> bool {
    let member = format!("{group}-0-0");
    let supervised = w.pods().iter().any(|pod| {
        let notes = pod.metadata.annotations.as_ref();
        notes.is_some_and(|n| n.values().any(|v| v == "supervised"))
    });
    if supervised {
        w.children().contains_key(&member)
    } else {
        w.uids().contains_key(&member)
    }
}

/// A node with workers and without the launcher.
fn node_of_workers(w: &Solo, workers: i32) -> String {
    let launcher = w.node_of("launcher", 0);
    let mut nodes = (0..workers).map(|at| w.node_of("worker", at));
    let other = nodes.find(|node| *node != launcher);
    other.expect("the workers have several nodes")
}

fn is_placed(w: &Solo, gang: &str) -> bool {
    let group = w.groups().remove(gang).expect("the gang has a pod group");
    group.status.is_some_and(|s| s.placement.is_some())
}

fn causes(s: &TrainingWorkloadStatus, domain: &str) -> Vec<(CauseKind, bool)> {
    let ours = s.history.iter().filter(|h| h.domain == domain);
    ours.map(|h| (h.cause.kind, h.counted)).collect()
}

#[test]
fn a_launcher_waits_on_its_node_while_its_workers_are_preempted() {
    for supervised in [false, true] {
        let mut w = settled(launcher(), supervised);
        let (node, uids) = (w.node_of("launcher", 0), w.uids());
        without_capacity(&mut w);
        w.preempt("worker");
        w.rounds(60);
        assert!(!runs(&mut w, "launcher"), "supervised: {supervised}");
        assert!(is_placed(&w, "launcher") && !is_placed(&w, "worker"));
        with_capacity(&mut w);
        w.settle();
        let s = w.status();
        assert_eq!(
            (s.phase, s.restarts.counted),
            (Some(Phase::Running), 0),
            "{s:#?}"
        );
        assert_eq!(w.node_of("launcher", 0), node);
        if supervised {
            assert_eq!(w.uids()["launcher-0-0"], uids["launcher-0-0"]);
            assert_eq!(w.children()["launcher-0-0"], 2);
        }
        assert_eq!(
            causes(&s, "launcher"),
            [(CauseKind::DependencyBroken, false)]
        );
    }
}

#[test]
fn dependents_with_accelerators_queue_again_at_their_old_time() {
    let mut spec = launcher();
    depends(&mut spec, "evaluator", "worker", 8);
    let mut w = settled(spec, true);
    let queued = |w: &Solo| w.groups()["evaluator"].status.clone().unwrap().queued_at;
    let before = queued(&w);
    assert!(before.is_some());
    w.later(600);
    w.preempt("worker");
    w.until("the evaluator releases its nodes", |w| {
        !is_placed(w, "evaluator")
    });
    assert!(is_placed(&w, "launcher"));
    w.settle();
    assert_eq!(queued(&w), before);
    assert_eq!(
        (w.status().phase, w.status().restarts.counted),
        (Some(Phase::Running), 0)
    );
}

#[test]
fn dependents_start_after_their_dependency_at_each_resume() {
    for supervised in [false, true] {
        let mut w = settled(launcher(), supervised);
        for _ in 0..2 {
            w.edit(|s| s.suspend = true);
            w.settle();
            w.faults(|f| f.starts_nothing = true);
            w.edit(|s| s.suspend = false);
            w.rounds(30);
            assert!(!w.uids().contains_key("launcher-0-0"));
            assert_eq!(w.condition("Admitted"), "!WaitingForDependency");
            w.faults(|f| f.starts_nothing = false);
            w.settle();
            assert_eq!(w.status().phase, Some(Phase::Running));
        }
        assert_eq!(w.status().restarts.counted, 0);
    }
}

#[test]
fn a_launcher_restarts_in_place_after_its_workers_restarted() {
    for supervised in [false, true] {
        let mut w = settled(launcher(), supervised);
        w.faults(|f| f.starts_nothing = true);
        w.exit("worker", 0, 1);
        w.rounds(30);
        if !supervised {
            assert!(!runs(&mut w, "launcher"));
        }
        w.faults(|f| f.starts_nothing = false);
        w.settle();
        let s = w.status();
        assert_eq!((s.phase, s.restarts.counted), (Some(Phase::Running), 1));
        assert_eq!(
            causes(&s, "launcher"),
            [(CauseKind::DependencyBroken, false)]
        );
    }
}

#[test]
fn a_launcher_that_fails_shortly_before_its_workers_is_not_charged() {
    for rounds in [0, 1, 10] {
        for supervised in [false, true] {
            let mut spec = launcher();
            spec["failurePolicy"]["limits"]["maxRestarts"] = json!(1);
            let mut w = settled(spec, supervised);
            w.exit("launcher", 0, 1);
            w.rounds(rounds);
            w.exit("worker", 0, 1);
            w.settle();
            let s = w.status();
            assert_eq!(
                (s.phase, s.restarts.counted),
                (Some(Phase::Running), 1),
                "{rounds} {supervised} {s:#?}"
            );
            let launcher = causes(&s, "launcher");
            assert!(
                launcher.iter().all(|(_, counted)| !counted),
                "{rounds} {supervised} {launcher:?}"
            );
        }
    }
}

#[test]
fn a_launcher_that_fails_before_a_preemption_does_not_end_the_workload() {
    for action in ["RestartGang", "FailWorkload"] {
        let mut spec = launcher();
        spec["failurePolicy"]["limits"]["maxRestarts"] = json!(0);
        spec["failurePolicy"]["rules"] =
            json!([{"name": "r", "match": {"groups": ["launcher"]}, "action": action}]);
        let mut w = settled(spec, true);
        w.exit("launcher", 0, 1);
        w.rounds(5);
        assert_eq!(w.condition("Failed"), "absent");
        w.preempt("worker");
        w.settle();
        let s = w.status();
        assert_eq!(
            (s.phase, s.restarts.counted),
            (Some(Phase::Running), 0),
            "{action} {s:#?}\n{}",
            w.story(60)
        );
    }
}

#[test]
fn a_launcher_that_fails_alone_is_charged_and_can_end_the_workload() {
    let mut spec = launcher();
    spec["failurePolicy"]["limits"]["maxRestarts"] = json!(1);
    let mut w = settled(spec, true);
    for _ in 0..2 {
        w.exit("launcher", 0, 1);
        w.rounds(60);
    }
    let s = w.status();
    assert_eq!((s.phase, s.restarts.counted), (Some(Phase::Failed), 1));
    assert!(causes(&s, "worker").is_empty());
}

#[test]
fn a_launcher_fails_uncharged_while_its_workers_restart() {
    let mut w = settled(launcher(), true);
    w.faults(|f| f.starts_nothing = true);
    w.delete_pod("worker", 0);
    w.rounds(20);
    w.delete_pod("launcher", 0);
    w.rounds(20);
    w.faults(|f| f.starts_nothing = false);
    w.settle();
    let s = w.status();
    assert_eq!((s.phase, s.restarts.counted), (Some(Phase::Running), 0));
}

#[test]
fn a_launcher_continues_after_its_workers_have_succeeded() {
    for condition in ["Ready", "Succeeded"] {
        let mut spec = launcher();
        spec["groups"][1]["dependsOn"][0]["condition"] = json!(condition);
        let mut w = Solo::supervised(spec);
        w.settle();
        w.exit("worker", 0, 0);
        w.exit("worker", 1, 0);
        w.settle();
        let before = w.children()["launcher-0-0"];
        w.edit(|s| s.restart_nonce += 1);
        w.settle();
        assert_eq!(w.children()["launcher-0-0"], before + 1);
        assert!(
            causes(&w.status(), "launcher")
                .iter()
                .all(|(kind, _)| *kind == CauseKind::Requested)
        );
    }
}

#[test]
fn a_launcher_waits_if_its_workers_lose_a_node_and_then_all_nodes() {
    let mut spec = launcher();
    spec["groups"][0]["replicas"] = json!(8);
    spec["failurePolicy"]["replacementTimeoutSeconds"] = json!(60);
    let mut w = settled(spec, true);
    let node = node_of_workers(&w, 8);
    w.lose(&node);
    w.wait(600);
    assert!(!is_placed(&w, "worker"));
    let s = w.status();
    assert!(!w.children().contains_key("launcher-0-0"), "{s:#?}");
    w.find(&node);
    w.wait(600);
    let s = w.status();
    assert_eq!(s.phase, Some(Phase::Running), "{s:#?}");
    assert!(causes(&s, "launcher").iter().all(|(_, counted)| !counted));
}

#[test]
fn an_unready_worker_is_no_broken_dependency() {
    let mut w = settled(launcher(), true);
    w.edit_pod("worker", 0, |pod| {
        let conditions = &mut pod.status.get_or_insert_default().conditions;
        for c in conditions
            .iter_mut()
            .flatten()
            .filter(|c| c.type_ == "Ready")
        {
            c.status = "False".into();
        }
    });
    for _ in 0..20 {
        w.pass();
        w.later(1);
    }
    assert!(w.children().contains_key("launcher-0-0"));
    assert!(w.status().history.is_empty());
    let incidents = w.status().domains.into_iter().filter_map(|d| d.incident);
    assert_eq!(incidents.count(), 0);
}

#[test]
fn an_elastic_dependency_is_broken_only_below_its_minimum() {
    let mut spec = launcher();
    spec["groups"][0]["replicas"] = json!(4);
    spec["groups"][0]["minCount"] = json!(2);
    let mut w = settled(spec, true);
    let node = node_of_workers(&w, 4);
    w.lose(&node);
    for other in w.node_names() {
        if other != node {
            let held = w
                .pods()
                .iter()
                .filter(|p| lockstep_sim::pods::node_of(p) == Some(&other))
                .count();
            w.capacity(&other, held.min(2));
        }
    }
    w.wait(600);
    assert_eq!(w.children()["launcher-0-0"], 1);
    without_capacity(&mut w);
    w.preempt("worker");
    w.rounds(30);
    assert!(!w.children().contains_key("launcher-0-0"));
}

#[test]
fn a_basic_dependency_is_broken_only_without_any_placed_member() {
    let mut spec = launcher();
    spec["scheduling"] = json!({"policy": "Basic"});
    let mut w = settled(spec, false);
    let before = w.uids()["launcher-0-0"].clone();
    w.exit("worker", 0, 1);
    w.delete_pod("worker", 1);
    w.settle();
    assert_eq!(w.uids()["launcher-0-0"], before);
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_chain_stops_from_its_first_group_and_starts_in_order() {
    let mut spec = launcher();
    spec["groups"][1]["name"] = json!("server");
    depends(&mut spec, "client", "server", 8);
    let mut w = settled(spec, true);
    without_capacity(&mut w);
    w.preempt("worker");
    w.rounds(60);
    assert!(w.children().is_empty(), "{:?}", w.children());
    let placed = ["worker", "server", "client"].map(|gang| is_placed(&w, gang));
    assert_eq!(placed, [false, true, false]);
    with_capacity(&mut w);
    for _ in 0..60 {
        w.rounds(1);
        let there = w.children();
        let has = |member: &str| there.contains_key(member);
        assert!(has("worker-0-0") || !has("server-0-0"));
        assert!(has("server-0-0") || !has("client-0-0"));
    }
    w.settle();
    let s = w.status();
    assert_eq!((s.phase, s.restarts.counted), (Some(Phase::Running), 0));
}

#[test]
fn a_dependent_that_loses_its_nodes_meanwhile_gets_others_afterwards() {
    let mut w = settled(launcher(), true);
    without_capacity(&mut w);
    w.preempt("worker");
    w.rounds(10);
    let node = w.node_of("launcher", 0);
    w.lose(&node);
    w.wait(900);
    with_capacity(&mut w);
    w.wait(900);
    let s = w.status();
    assert_eq!(
        (s.phase, s.restarts.counted),
        (Some(Phase::Running), 0),
        "{s:#?}"
    );
    assert_ne!(w.node_of("launcher", 0), node);
}

#[test]
fn the_message_names_the_broken_dependency() {
    let mut spec = launcher();
    depends(&mut spec, "evaluator", "worker", 8);
    let mut w = settled(spec, true);
    without_capacity(&mut w);
    w.preempt("worker");
    w.rounds(60);
    let s = w.status();
    let incident = s.domains.iter().find(|d| d.key == "launcher").unwrap();
    let incident = incident.incident.as_ref().expect("the launcher is stopped");
    assert_eq!(
        (incident.action, incident.cause.message.as_str()),
        (
            FailureAction::RestartGang,
            "group worker in dependsOn has members without placement"
        )
    );
}

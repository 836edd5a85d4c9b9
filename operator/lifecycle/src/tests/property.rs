//! Whatever happens, in whatever order, with crashes in between: it converges, and every incident
//! is paid for once.

use chrono::TimeDelta;
use lockstep_api::workload::{Phase, SchedulingPolicy, TrainingWorkloadStatus};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::gang_with;
use crate::testing::{SimPod, World};
use lockstep_api::membership::Membership;

/// Something that happens. Numbers choose among what is there.
#[derive(Clone, Debug)]
enum Step {
    /// A pass of the manager, which crashes after so many requests.
    Crash(usize),
    /// A whole pass.
    Pass,
    /// The scheduler and the binder.
    Schedule,
    /// A kubelet sync.
    Kubelet(usize),
    /// A pass of an agent.
    Agent(usize),
    /// Seconds.
    Tick(i64),
    /// A container exits.
    Exit(usize, i32),
    /// A user deletes a pod.
    Delete(usize),
    /// A finished or terminating pod is garbage-collected, or its kubelet confirms the deletion.
    Collect(usize),
    /// A node is lost.
    Lose(usize),
    /// The spec changes.
    Suspend(bool),
    Nonce,
    Resize(i32),
    /// Preemption of the gang.
    Preempt,
    /// A node has capacity for so many members.
    Capacity(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3usize).prop_map(Step::Crash),
        12 => Just(Step::Pass),
        4 => Just(Step::Schedule),
        8 => (0..4usize).prop_map(Step::Kubelet),
        8 => (0..4usize).prop_map(Step::Agent),
        4 => (1..30i64).prop_map(Step::Tick),
        4 => (0..8usize, prop_oneof![Just(0), Just(1), Just(137), Just(9), Just(3)]).prop_map(|(p, c)| Step::Exit(p, c)),
        1 => (0..8usize).prop_map(Step::Delete),
        1 => (0..8usize).prop_map(Step::Collect),
        1 => (0..1usize).prop_map(Step::Lose),
        1 => any::<bool>().prop_map(Step::Suspend),
        1 => Just(Step::Nonce),
        1 => (1..5i32).prop_map(Step::Resize),
        1 => Just(Step::Preempt),
        2 => (1..4usize, 0..3usize).prop_map(|(node, slots)| Step::Capacity(node, slots)),
    ];
    prop::collection::vec(step, 20..120)
}

/// Policies that the scenarios run under.
fn specs() -> impl Strategy<Value = Value> {
    let rules = json!([
        {"name": "recreate", "match": {"exitCodes": {"operator": "In", "values": [9]}}, "action": "RecreateGang"},
        {"name": "elsewhere", "match": {"exitCodes": {"operator": "In", "values": [3]}}, "action": "RestartGang",
         "failedMember": "ReplaceElsewhere", "avoidSeconds": 20}]);
    let policy = json!({"inPlace": {"withoutSupervisor": "Allow"}, "limits": {"maxRestarts": 100}, "rules": rules});
    prop_oneof![
        Just(json!({"failurePolicy": policy})),
        Just(json!({"failurePolicy": policy, "scheduling": {"policy": "Basic"}})),
        Just(json!({"failurePolicy": policy, "scheduling": {"gang": {"scope": "Replica"}}})),
        Just(
            json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}, "limits": {"maxRestarts": 3}}})
        ),
        Just(json!({"failurePolicy": policy, "scheduling": {"gang": {"minCount": 1}}})),
    ]
}

fn apply(w: &mut World, step: &Step) {
    let node = |i: usize| format!("n{i}");
    let pod = |w: &World, i: usize| {
        (!w.pods.is_empty()).then(|| w.pods[i % w.pods.len()].shown.uid.clone())
    };
    match step {
        Step::Crash(n) => drop(w.pass(*n)),
        Step::Pass => drop(w.pass(usize::MAX)),
        Step::Schedule => drop(w.schedule()),
        Step::Kubelet(i) => drop(w.kubelet(&node(*i))),
        Step::Agent(i) => drop(w.agent(&node(*i))),
        Step::Tick(s) => w.now += TimeDelta::seconds(*s),
        Step::Exit(i, code) => {
            if let Some(uid) = pod(w, *i) {
                w.exit_pod(&uid, *code);
            }
        }
        Step::Delete(i) => {
            if let Some(uid) = pod(w, *i) {
                let now = w.now;
                let pod = w.pods.iter_mut().find(|p| p.shown.uid == uid).unwrap();
                pod.shown.deleted_at.get_or_insert(now);
            }
        }
        Step::Collect(i) => {
            if let Some(uid) = pod(w, *i) {
                w.pods.retain(|p| {
                    p.shown.uid != uid || !(p.shown.terminal() || p.shown.terminating())
                });
            }
        }
        Step::Lose(i) => w.lose(&node(*i)),
        // Other workloads need the capacity: only elastic gangs may meet it, the rest is here to
        // run in the end.
        Step::Capacity(i, slots) => {
            if w.workload.spec.scheduling.gang.min_count.is_some() {
                w.nodes.get_mut(&node(*i)).unwrap().slots = *slots;
            }
        }
        Step::Suspend(on) => w.edit(|s| s.suspend = *on),
        Step::Nonce => w.edit(|s| s.restart_nonce += 1),
        Step::Resize(n) => w.edit(|s| s.groups[0].replicas = *n),
        Step::Preempt => {
            let now = w.now;
            let placed: Vec<String> = w.groups.keys().cloned().collect();
            for key in placed {
                w.preempt(&key, now);
            }
        }
    }
}

/// What never goes back, between two statuses that were written one after the other.
fn check_order(a: &TrainingWorkloadStatus, b: &TrainingWorkloadStatus) {
    let ended =
        |s: &TrainingWorkloadStatus| matches!(s.phase, Some(Phase::Succeeded | Phase::Failed));
    assert!(
        b.attempt >= a.attempt || a.applied.is_none(),
        "the attempt never goes back"
    );
    for d in &b.domains {
        let old = a.domains.iter().find(|o| o.key == d.key);
        assert!(
            old.is_none_or(|o| d.attempt == o.attempt || d.attempt == o.attempt + 1),
            "an attempt rises by one"
        );
    }
    assert!(b.restarts.total >= a.restarts.total && b.restarts.counted >= a.restarts.counted);
    assert!(b.preemptions >= a.preemptions && b.observed_generation >= a.observed_generation);
    assert!(!ended(a) || b.phase == a.phase, "terminal is final");
    let paid = b.restarts.counted - a.restarts.counted;
    let opened = b
        .domains
        .iter()
        .filter_map(|d| d.incident.as_ref().map(|i| (&d.key, i)))
        .filter(|(_, i)| i.counted)
        .filter(|(key, i)| {
            let old = a
                .domains
                .iter()
                .find(|o| o.key == **key)
                .and_then(|o| o.incident.as_ref());
            old.is_none_or(|o| {
                (o.detected_at, o.attempt, o.counted) != (i.detected_at, i.attempt, true)
            })
        })
        .count() as i64;
    let at_once: i64 = (b.restarts.total - a.restarts.total).max(0);
    let given_up = b
        .history
        .iter()
        .filter(|h| !a.history.contains(h) && h.recovered_at.is_none())
        .count() as i64;
    assert!(
        paid <= opened + at_once + given_up,
        "a unit of budget is taken by an incident: {paid}"
    );
}

/// Cases, unless `PROPTEST_CASES` says another number.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 150, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_history_converges_and_pays_once_for_each_incident(spec in specs(), steps in steps()) {
        let mut w = World::new(gang_with(3, &spec));
        w.patience = 400;
        for step in &steps {
            apply(&mut w, step);
        }
        // At least the minimum fits in the end.
        w.nodes.get_mut("n3").unwrap().slots = 2;
        w.settle();
        for pair in w.written.windows(2) {
            check_order(&pair[0], &pair[1]);
        }
        let status = w.status();
        prop_assert!(w.deleted || w.is_idle());
        let live: Vec<_> = w.pods.iter().filter(|p| !p.shown.terminating()).collect();
        match status.phase {
            Some(Phase::Running) => {
                prop_assert!(status.domains.iter().all(|d| d.incident.is_none()));
                let world = Membership::of(&w.workload.spec, &status);
                let unfinished: i32 = status.groups.iter().map(|g| world.size_of(&g.name) - g.succeeded).sum();
                let running: Vec<_> = live.iter().filter(|p| !p.shown.terminal() && !p.shown.winding_up()).collect();
                prop_assert_eq!(running.len(), unfinished as usize, "a settled gang has all its members");
                prop_assert!(running.iter().all(|p| p.shown.identity.published && !p.shown.gated));
                let size_in_env = |p: &SimPod| p.spec.containers[0].env.iter().flatten().find(|e| e.name == "PET_NNODES")?.value.clone();
                let size = world.size_of("g").to_string();
                // Members that stand alone are not restarted when others join.
                let alone = w.workload.spec.scheduling.policy == SchedulingPolicy::Basic;
                prop_assert!(alone || running.iter().all(|p| size_in_env(p).as_ref() == Some(&size)), "each knows how many they are");
            }
            Some(Phase::Succeeded | Phase::Failed) => {
                prop_assert!(live.iter().all(|p| p.shown.terminal() || p.shown.winding_up()));
            }
            Some(Phase::Suspended) => prop_assert!(live.iter().all(|p| p.shown.terminal())),
            other => prop_assert!(false, "settled in phase {other:?}: {status:#?}"),
        }
    }
}

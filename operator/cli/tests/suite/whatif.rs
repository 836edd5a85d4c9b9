//! Predictions of `whatif`.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use lockstep_cli::file::{pack, unpack};
use lockstep_cli::record::Objects;
use lockstep_cli::whatif::{Verdict, WhatIfReport, what_if};
use lockstep_engine::{Demand, VictimOrder, preempt};
use lockstep_model::eviction::units::{SinglePod, UnitsBuilder};
use lockstep_model::{
    ClusterModel, CostModel, GangUnit, Occupant, PriorityClass, Rules, SavedWork,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{
    GPU, RACK, ago, class, full_cluster, gang, manifest, node, now, pod, rules, screen, snapshot,
    workload,
};

fn ask(objects: Objects, members: i32, gpus: i64, scheduling: &Value) -> WhatIfReport {
    what_if(
        &snapshot(objects),
        &workload(manifest("new", members, gpus, scheduling)),
        &rules(),
    )
    .unwrap()
}

#[test]
fn the_lowest_priority_leaves_first_however_much_it_loses() {
    let answer = ask(full_cluster(), 1, 8, &json!({"topology": {"key": RACK}}));
    assert_eq!(
        screen(&answer),
        "\
ml/new (priority 100): fits after evicting 1 victim

GANG       VERDICT    MEMBERS   NEEDED   NODES   VICTIMS   COST
workload   preempts   1/1       1        1       1         4.3 GPU-hours

GANG       NODE   DOMAIN   MEMBERS
workload   n3     rack b   workers/0/0

GANG       VICTIM       PRIORITY   PODS   COST            LOST WORK       CAPACITY TAKEN ON
workload   pod ml/web   5          1      4.3 GPU-hours   4.0 GPU-hours   n3

workload: the victims cost 4.3 GPU-hours (15360 accelerator-seconds); no cheaper set of victims frees enough capacity
workload: no other set of victims was found
"
    );
}

#[test]
fn by_least_work_the_youngest_gang_is_evicted_and_the_next_best_set_is_shown() {
    let rules = Rules {
        order: VictimOrder::LeastWork,
        follow_on_depth: 0,
        ..rules()
    };
    let asked = workload(manifest("new", 1, 8, &json!({})));
    let answer = what_if(&snapshot(full_cluster()), &asked, &rules).unwrap();
    assert_eq!(
        screen(&answer),
        "\
ml/new (priority 100): fits after evicting 1 victim

GANG       VERDICT    MEMBERS   NEEDED   NODES   VICTIMS   COST
workload   preempts   1/1       1        1       1         1.6 GPU-hours

GANG       NODE   DOMAIN   MEMBERS
workload   n2     -        workers/0/0

GANG       VICTIM                                PRIORITY   PODS   COST            LOST WORK       CAPACITY TAKEN ON
workload   podgroup ml/young-workload-141843a7   10         1      1.6 GPU-hours   1.3 GPU-hours   n2

workload: the victims cost 1.6 GPU-hours (5760 accelerator-seconds); no cheaper set of victims frees enough capacity
workload: next best: podgroup ml/old-workload-7f027e5c; 4.3 GPU-hours (15360 accelerator-seconds)
"
    );
}

#[test]
fn a_victim_that_would_evict_another_gang_adds_that_cost() {
    let rules = Rules {
        order: VictimOrder::LeastWork,
        ..rules()
    };
    let asked = workload(manifest("new", 1, 8, &json!({})));
    let answer = what_if(&snapshot(full_cluster()), &asked, &rules).unwrap();
    let text = screen(&answer);
    assert_eq!(answer.gangs[0].victims[0].name, "web", "{text}");
    // Its own 5760, and the loss of the pod that it would have evicted.
    assert!(
        text.contains("next best: podgroup ml/young-workload-141843a7; 5.9 GPU-hours (21120 "),
        "{text}"
    );
}

#[test]
fn work_that_has_not_run_for_long_enough_is_not_evicted() {
    let rules = Rules {
        min_runtime: Duration::from_secs(4000),
        ..rules()
    };
    let asked = workload(manifest("new", 1, 8, &json!({})));
    let answer = what_if(&snapshot(full_cluster()), &asked, &rules).unwrap();
    assert_eq!(
        answer.gangs[0].victims[0].name, "old-workload-7f027e5c",
        "web and young have run for less"
    );
}

#[test]
fn a_class_may_make_what_runs_count_for_more_than_its_priority() {
    let mut objects = full_cluster();
    objects.classes.push(PriorityClass {
        preemption_priority: Some(100),
        ..class("sticky", 10)
    });
    for group in &mut objects.groups {
        group.spec.gang.priority_class_name = Some("sticky".into());
    }
    objects.pods.retain(|p| *p.name != *"web");
    objects.nodes.retain(|n| n.name != "n3");
    assert_eq!(
        ask(objects, 1, 8, &json!({})).gangs[0].verdict,
        Verdict::DoesNotFit
    );
}

#[test]
fn a_gang_that_does_not_fit_gets_the_tightest_reason() {
    let answer = ask(full_cluster(), 2, 8, &json!({"preemptionPolicy": "Never"}));
    assert_eq!(
        screen(&answer),
        "\
ml/new (priority 100): does not fit

GANG       VERDICT        MEMBERS   NEEDED   NODES   VICTIMS   COST
workload   does not fit   0/2       2        0       0         0 GPU-hours

workload: insufficient nvidia.com/gpu: 2 pods need 16 more; the gang may not preempt: preemptionPolicy of the workload or its PriorityClass is Never
"
    );
    let answer = ask(full_cluster(), 3, 8, &json!({"topology": {"key": RACK}}));
    let reason = answer.gangs[0].reason.as_deref().unwrap();
    assert_eq!(
        reason,
        "the cluster is too small even without other work: insufficient nvidia.com/gpu in rack a: 1 pod needs 8 more"
    );
}

#[test]
fn whether_kube_scheduler_places_a_gang_is_unknown() {
    let answer = ask(full_cluster(), 2, 8, &json!({"backend": "Kubernetes"}));
    assert_eq!(answer.gangs[0].verdict, Verdict::Unknown);
    assert!(!answer.fits);
    assert!(screen(&answer).starts_with("ml/new (priority 100): unknown\n"));
}

#[test]
fn free_capacity_is_used_before_any_eviction() {
    let mut objects = full_cluster();
    objects.nodes.push(node("n5", "b", 8));
    let answer = ask(objects, 1, 8, &json!({}));
    assert_eq!(
        (
            answer.gangs[0].verdict,
            answer.gangs[0].nodes[0].node.as_str()
        ),
        (Verdict::Fits, "n5")
    );
}

#[test]
fn capacity_that_is_being_left_is_waited_for() {
    let mut objects = full_cluster();
    let ending = json!({"deletionTimestamp": ago(-30)});
    objects.nodes.push(node("n5", "b", 8));
    objects.pods.push(pod("ending", "n5", 8, 1000, 60, &ending));
    assert_eq!(
        ask(objects, 1, 8, &json!({})).gangs[0].verdict,
        Verdict::FitsOnceOthersHaveLeft
    );
}

#[test]
fn a_gang_that_waits_longer_is_not_overtaken() {
    let mut objects = Objects {
        classes: vec![class("high", 100)],
        ..Objects::default()
    };
    objects.nodes = vec![node("n1", "a", 8), node("n2", "a", 8)];
    let mut big = pod("big", "n1", 8, 1000, 60, &json!({}));
    big.may_end = true;
    objects.pods.push(big);
    gang(&mut objects, "first", 2, 8, 100, &[], 60);
    let answer = ask(objects, 1, 8, &json!({}));
    assert_eq!(answer.gangs[0].verdict, Verdict::DoesNotFit);
    let reason = answer.gangs[0].reason.as_deref().unwrap();
    assert!(reason.contains("queued behind 1 gang"), "{reason}");
}

#[test]
fn a_running_gang_that_lacks_a_member_is_ahead_of_a_new_one() {
    let mut objects = Objects {
        classes: vec![class("high", 100)],
        ..Objects::default()
    };
    objects.nodes = vec![node("n1", "a", 8), node("n2", "a", 8)];
    gang(&mut objects, "broken", 2, 8, 100, &["n1"], 60);
    let answer = ask(objects, 1, 8, &json!({}));
    assert_eq!(answer.gangs[0].verdict, Verdict::DoesNotFit, "{answer:?}");
}

#[test]
fn nodes_of_members_without_pods_are_taken() {
    let mut objects = Objects {
        classes: vec![class("high", 100)],
        ..Objects::default()
    };
    objects.nodes = vec![node("n1", "a", 8)];
    gang(&mut objects, "placed", 1, 8, 100, &["n1"], 60);
    objects.pods.clear();
    assert_eq!(
        ask(objects, 1, 8, &json!({})).gangs[0].verdict,
        Verdict::DoesNotFit
    );
}

#[test]
fn each_gang_of_a_workload_finds_what_those_before_it_left() {
    let mut objects = Objects {
        classes: vec![class("high", 100)],
        ..Objects::default()
    };
    objects.nodes = vec![node("n1", "a", 8), node("n2", "a", 8)];
    let mut value = manifest("new", 1, 8, &json!({"gang": {"scope": "Replica"}}));
    value["spec"]["groups"][0]["replicas"] = json!(3);
    let answer = what_if(&snapshot(objects), &workload(value), &rules()).unwrap();
    let verdicts: Vec<_> = answer
        .gangs
        .iter()
        .map(|g| (g.gang.as_str(), g.verdict))
        .collect();
    let (fits, not) = (Verdict::Fits, Verdict::DoesNotFit);
    assert_eq!(
        verdicts,
        [("workers.0", fits), ("workers.1", fits), ("workers.2", not)]
    );
    assert!(!answer.fits);
}

#[test]
fn an_unknown_priority_class_is_named_with_its_field() {
    let mut objects = full_cluster();
    objects.classes.clear();
    let error = what_if(
        &snapshot(objects),
        &workload(manifest("new", 1, 8, &json!({}))),
        &rules(),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "spec.priorityClassName: there is no priority class \"high\""
    );
}

/// A pod or gang of a random cluster: first node, nodes, accelerators, priority, age.
type Work = (usize, usize, i64, i32, i64);

const NODES: usize = 6;

fn cluster(work: &[Work]) -> Objects {
    let mut objects = Objects {
        classes: vec![class("high", 100)],
        ..Objects::default()
    };
    let names: Vec<String> = (0..NODES).map(|n| format!("n{n}")).collect();
    objects.nodes = (0..NODES)
        .map(|n| node(&names[n], if n < NODES / 2 { "a" } else { "b" }, 8))
        .collect();
    let mut free = [8; NODES];
    for (number, &(first, span, gpus, priority, age)) in work.iter().enumerate() {
        let on: Vec<usize> = (0..span).map(|i| (first + i) % NODES).collect();
        if on.iter().any(|&n| free[n] < gpus) {
            continue;
        }
        for &n in &on {
            free[n] -= gpus;
        }
        if span == 1 {
            objects.pods.push(pod(
                &format!("p{number}"),
                &names[first],
                gpus,
                priority,
                age,
                &json!({}),
            ));
        } else {
            let on: Vec<&str> = on.iter().map(|&n| names[n].as_str()).collect();
            gang(
                &mut objects,
                &format!("g{number}"),
                span as i32,
                gpus,
                priority,
                &on,
                age,
            );
        }
    }
    objects
}

/// Victims by UID, nodes with their number of members, and the loss, from the engine over the
/// objects themselves.
fn live(
    objects: &Objects,
    members: u32,
    gpus: i64,
) -> Option<(BTreeSet<String>, BTreeMap<String, usize>, u128)> {
    let mut model = ClusterModel::default();
    objects
        .nodes
        .iter()
        .for_each(|n| assert!(model.upsert_node(n.clone())));
    objects
        .pods
        .iter()
        .for_each(|p| assert!(model.upsert_pod(p.clone())));
    let snapshot = model.snapshot();
    let costs = CostModel::default();
    let mut builder = UnitsBuilder::new(&snapshot, &[], now(), false);
    let mut uids = Vec::new();
    // Ties are broken by name.
    let mut groups: Vec<_> = objects.groups.iter().collect();
    groups.sort_by_key(|g| &g.metadata.name);
    for group in groups {
        let of_group = objects
            .pods
            .iter()
            .filter(|p| p.pod_group.as_deref() == group.metadata.name.as_deref());
        let held: Vec<Occupant> = of_group
            .map(|p| Occupant {
                node: snapshot.ordinal(p.holds().unwrap()).unwrap(),
                requests: Arc::clone(&p.requests),
                pod: Some(Arc::new(p.clone())),
            })
            .collect();
        let cost = held
            .iter()
            .map(|h| costs.cost_of_member(h.pod.as_ref().unwrap(), SavedWork::default(), now()))
            .sum();
        let priority = group.spec.gang.priority;
        builder.add_gang(&GangUnit {
            number: uids.len(),
            priority,
            preempts: true,
            holds: held,
            cost,
            eligible: None,
        });
        uids.push(group.metadata.uid.clone().unwrap());
    }
    for pod in (0..snapshot.node_count())
        .flat_map(|n| snapshot.pods_on(n))
        .filter(|p| p.owner.is_none())
    {
        builder.add_pod(SinglePod {
            pod,
            priority: pod.priority,
            cost: costs.cost_of_pod(pod, now()),
            cascade: None,
            eligible: None,
        });
        uids.push(pod.uid.to_string());
    }
    let request = snapshot
        .dims()
        .amounts(&[("pods", 1), (GPU, gpus)].into_iter().collect());
    let demand = Demand::homogeneous(request, members, 100);
    let answer = preempt(
        snapshot.free_capacity(),
        &builder.build().units,
        &demand,
        &Rules::default().options(),
    )
    .ok()?;
    let mut nodes = BTreeMap::new();
    for assignment in &answer.placement.assignments {
        *nodes
            .entry(snapshot.node_name(assignment.node).unwrap().to_string())
            .or_default() += assignment.count as usize;
    }
    Some((
        answer.victims.iter().map(|&v| uids[v].clone()).collect(),
        nodes,
        answer.cost.lost,
    ))
}

proptest! {
    // Ages stay below the assumed checkpoint interval of pods without a reported checkpoint. Beyond
    // it all work costs the same, and the engine may choose any.
    #[test]
    fn a_what_if_over_a_file_is_the_engines_decision_over_the_objects(
        work in prop::collection::vec((0..NODES, 1..3usize, 1..9i64, 0..90i32, 0..1700i64), 1..24),
        members in 1..7i32,
        gpus in 1..9i64,
    ) {
        let expected = live(&cluster(&work), members as u32, gpus);
        let file = unpack(&pack(&snapshot(cluster(&work))).unwrap()).unwrap();
        let answer = what_if(&file, &workload(manifest("new", members, gpus, &json!({}))), &rules()).unwrap();
        let found = answer.gangs[0].clone();
        prop_assert_eq!(answer.fits, expected.is_some());
        let hashed = file.pseudonymized(&RandomState::new());
        let other = what_if(&hashed, &workload(manifest("new", members, gpus, &json!({}))), &rules()).unwrap();
        let rank = |name: &str| hashed.nodes.iter().zip(&file.nodes).find(|(h, _)| h.name == name).unwrap().1.name.clone();
        let places: Vec<String> = other.gangs[0].nodes.iter().map(|on| rank(&on.node)).collect();
        prop_assert_eq!(places, found.nodes.iter().map(|on| on.node.clone()).collect::<Vec<_>>());
        prop_assert_eq!(other.gangs[0].cost, found.cost);
        if let Some((victims, nodes, cost)) = expected {
            prop_assert_eq!(found.victims.iter().map(|v| v.uid.clone()).collect::<BTreeSet<_>>(), victims);
            let count = |members: &[String]| lockstep_api::member::MemberSet::parse(members).unwrap().len();
            let placed = found.nodes.iter().map(|on| (on.node.clone(), count(&on.members)));
            prop_assert_eq!(placed.collect::<BTreeMap<_, _>>(), nodes);
            prop_assert_eq!(u128::from(found.cost), cost);
        }
    }
}

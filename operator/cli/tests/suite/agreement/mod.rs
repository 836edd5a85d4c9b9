//! `whatif` agrees with the manager's scheduling cycle on random clusters.
//!
//! Varied are nodes (number, size, rack), pods of other controllers (size, priority, age, budgets,
//! protected, terminating, nominated, jobs with and without deadline), and nodes refused by
//! kube-scheduler. Gangs vary in members, pod shapes, priority, age, preemption priority and
//! disruption mode. They wait, run, are partly placed, lack pods, preempt, are preempted or
//! terminate. The requested gang varies in members, shapes, topology and preemption. Nodes are
//! sorted by name, as in an API server's list, because ties between nodes depend on that order.

mod build;
mod scenario;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_api::member::MemberSet;
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_cli::file::{pack, unpack};
use lockstep_cli::record::Objects;
use lockstep_cli::whatif::{GangReport, Verdict, what_if};
use lockstep_model::{ClusterModel, unmet_preferences};
use lockstep_scheduler::{
    Decision, GangInput, GangState, Memory, PodSource, SchedulerSettings, SchedulingInput,
    messages, schedule,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::support::{RACK, ago, now, rules, snapshot, workload};
use build::{Builder, gang_objects, groups};
use scenario::scenarios;

const CLUSTERS: usize = 300;

/// The manager's cycle with the requested gang among its objects: the gang after the cycle, and the
/// number of other gangs with reservations.
fn manager(objects: &Objects, asked: &(Value, Value)) -> (SchedulingInput, GangState, usize) {
    let mut model = ClusterModel::default();
    model.use_topology_key(RACK);
    for node in &objects.nodes {
        model.upsert_node(node.clone());
    }
    for pod in &objects.pods {
        model.upsert_pod(pod.clone());
    }
    let new_workload: TrainingWorkload = serde_json::from_value(asked.0.clone()).unwrap();
    let new_group: PodGroup = serde_json::from_value(asked.1.clone()).unwrap();
    let workloads = objects.workloads.iter().chain([&new_workload]);
    let groups = objects.groups.iter().chain([&new_group]);
    let mut gangs = Vec::new();
    for (workload, group) in workloads.zip(groups) {
        let class = group
            .spec
            .gang
            .priority_class_name
            .as_ref()
            .and_then(|name| objects.classes.iter().find(|c| c.name == *name));
        let gang = GangInput::read(group, workload, class, PodSource::Templates, None);
        gangs.push(Arc::new(gang.unwrap()));
    }
    gangs.sort_by(|a, b| a.key.cmp(&b.key));
    let input = SchedulingInput {
        cluster: model.snapshot(),
        gangs,
        budgets: objects.budgets.iter().cloned().map(Arc::new).collect(),
        quotas: Vec::new(),
        weights: Arc::new(objects.weights.clone()),
    };
    let settings = SchedulerSettings {
        rules: rules(),
        searches_per_cycle: usize::MAX,
        ..SchedulerSettings::default()
    };
    let cycle = schedule(&input, &mut Memory::default(), &settings, now());
    let (new, others): (Vec<GangState>, Vec<GangState>) = cycle
        .gangs
        .iter()
        .cloned()
        .partition(|g| Some(g.uid()) == new_group.metadata.uid.as_deref());
    let reserve = others
        .iter()
        .filter(|g| g.status.reservation.is_some())
        .count();
    (input, new.into_iter().next().unwrap(), reserve)
}

type Outcome = (
    Verdict,
    BTreeMap<String, String>,
    BTreeSet<String>,
    Option<String>,
);

fn of_manager(input: &SchedulingInput, gang: &GangState) -> Outcome {
    let nodes = |nodes: &lockstep_api::gangs::Assignments| {
        let nodes = nodes.iter();
        nodes
            .map(|(member, node)| (member.to_string(), node.to_string()))
            .collect()
    };
    let unmet = |placed| {
        let levels = &gang.input.group.topology;
        unmet_preferences(levels, placed, &input.cluster)
    };
    match &gang.decision {
        Decision::Placed(placed) => (Verdict::Fits, nodes(placed), BTreeSet::new(), unmet(placed)),
        Decision::AfterTerminations(placed) => (
            Verdict::FitsOnceOthersHaveLeft,
            nodes(placed),
            BTreeSet::new(),
            unmet(placed),
        ),
        Decision::Preempts(preemption) => (
            Verdict::Preempts,
            nodes(&preemption.nodes),
            preemption
                .victims
                .iter()
                .map(|v| v.victim.uid.clone())
                .collect(),
            unmet(&preemption.nodes),
        ),
        Decision::None => {
            let pending = gang.pending.as_ref().unwrap();
            let text = messages::pending(pending, input.cluster.dims());
            (
                Verdict::DoesNotFit,
                BTreeMap::new(),
                BTreeSet::new(),
                Some(text),
            )
        }
    }
}

fn of_whatif(answer: &GangReport) -> Outcome {
    let mut nodes = BTreeMap::new();
    for on in &answer.nodes {
        for member in MemberSet::parse(&on.members).unwrap() {
            nodes.insert(member.to_string(), on.node.clone());
        }
    }
    let victims = answer.victims.iter().map(|v| v.uid.clone()).collect();
    (answer.verdict, nodes, victims, answer.reason.clone())
}

#[test]
fn whatif_over_a_file_answers_as_the_managers_cycle_over_the_objects() {
    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for number in 0..CLUSTERS {
        let scenario = scenarios().new_tree(&mut runner).unwrap().current();
        let mut features: BTreeSet<String> = BTreeSet::new();
        let mut builder = Builder::new(&scenario);
        for (at, gang) in scenario.gangs.iter().enumerate() {
            builder.gang(at, gang);
            features.insert(format!("{:?}", gang.state));
            features.extend(gang.second.map(|_| "TwoShapes".to_owned()));
            features.extend(gang.refused.map(|_| "RefusedNode".to_owned()));
            features.extend(gang.deadline.map(|_| "Deadline".to_owned()));
        }
        for (at, foreign) in scenario.foreign.iter().enumerate() {
            if builder.foreign(at, foreign) {
                features.insert(format!("Foreign{:?}", foreign.kind));
            }
        }
        let asked = &scenario.asked;
        let mut spec = json!({"priorityClassName": "high", "scheduling": {}});
        let mut group = json!({"spec": {"priority": 80}, "status": {"queuedAt": ago(0)}});
        if let Some(mode) = asked.topology {
            spec["scheduling"]["topology"] = json!({"key": RACK, "mode": mode});
            group["spec"]["schedulingConstraints"] =
                json!({"topology": [{"key": RACK, "mode": mode}]});
        }
        if asked.never {
            spec["scheduling"]["preemptionPolicy"] = json!("Never");
            group["spec"]["preemptionPolicy"] = json!("Never");
        }
        group["metadata"] = json!({"uid": "~new"});
        spec["activeDeadlineSeconds"] = json!(asked.deadline);
        let shapes = groups(asked.members, asked.gpus, asked.second);
        let mut new = gang_objects("new", &shapes, &spec, &group);
        new.0["status"]["startTime"] = json!(ago(0));

        let objects = builder.objects;
        let (input, gang, others_reserve) = manager(&objects, &new);
        let expected = of_manager(&input, &gang);
        let file = unpack(&pack(&snapshot(objects)).unwrap()).unwrap();
        let answer = what_if(&file, &workload(new.0), &rules()).unwrap();
        let found = of_whatif(&answer.gangs[0]);
        assert_eq!(found, expected, "cluster {number}: {scenario:#?}");

        features.insert(format!("{:?}", expected.0));
        if others_reserve > 0 {
            features.insert("OthersReserve".to_owned());
        }
        features.extend(gang.backfill.as_ref().map(|_| "Backfill".to_owned()));
        features.extend(
            gang.status
                .reservation
                .as_ref()
                .map(|_| "Reserves".to_owned()),
        );
        for feature in features {
            *seen.entry(feature).or_default() += 1;
        }
    }
    for feature in [
        "Waiting",
        "Running",
        "PartlyPlaced",
        "WithoutPods",
        "Preempted",
        "Terminating",
        "Released",
        "TwoShapes",
        "RefusedNode",
        "ForeignPlain",
        "ForeignGuarded",
        "ForeignProtected",
        "ForeignTerminating",
        "ForeignNominated",
        "ForeignJob",
        "ForeignUnit",
        "Deadline",
        "Reserves",
        "OthersReserve",
        "Fits",
        "FitsOnceOthersHaveLeft",
        "Preempts",
        "DoesNotFit",
    ] {
        let times = seen.get(feature).copied().unwrap_or_default();
        assert!(
            times >= 10,
            "{feature} in {times} of {CLUSTERS} clusters only: {seen:?}"
        );
    }
}

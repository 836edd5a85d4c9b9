//! The manager's scheduling cycle and `whatif` agree, whatever the cluster is like.
//!
//! Varied: nodes (number, size, rack), pods of others (size, priority, age, budgets, protected,
//! terminating, nominated only, jobs with and without a deadline), gangs (members, one or two pod shapes, priority, age, class that
//! counts for more once it runs, single or whole disruption; waiting, running, partly placed,
//! without pods, with an intent to preempt, being preempted, terminating), nodes that
//! kube-scheduler refused, and the gang that is asked about (members, shapes, topology,
//! preemption). Nodes are listed by name, as an API server lists them: ties between nodes go by
//! that order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::TimeDelta;
use lockstep_api::key::Key;
use lockstep_api::member::MemberSet;
use lockstep_api::names::{labels, pod_group_name};
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_cli::cluster::Objects;
use lockstep_cli::file::{pack, unpack};
use lockstep_cli::whatif::{GangAnswer, Verdict, what_if};
use lockstep_model::snapshot::PriorityClassRecord;
use lockstep_model::{ClusterModel, Pod};
use lockstep_scheduler::{
    Decision, GangSources, GangState, Memory, PodSource, SchedulerSettings, SchedulingInput,
    messages, schedule,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::support::{GPU, RACK, ago, budget, class, node, now, pod, rules, snapshot, workload};

/// Clusters that are played.
const CLUSTERS: usize = 300;

/// A pod of others.
#[derive(Clone, Debug)]
struct Foreign {
    node: usize,
    gpus: i64,
    priority: i32,
    age: i64,
    kind: ForeignKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ForeignKind {
    Plain,
    Guarded,
    Protected,
    Terminating,
    Nominated,
    Job,
    Unit,
}

/// A gang that is there.
#[derive(Clone, Debug)]
struct GangThere {
    members: usize,
    gpus: i64,
    /// Accelerators of the members of a second group with one member, if it has one.
    second: Option<i64>,
    priority: i32,
    age: i64,
    whole: bool,
    sticky: bool,
    state: GangThereState,
    /// Where the search for free nodes begins.
    first: usize,
    /// A node that kube-scheduler refused.
    refused: Option<usize>,
    /// A node that is reserved for its workers, or that it has promised to leave.
    reserved: Option<usize>,
    /// Seconds from the start of its workload to the end.
    deadline: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GangThereState {
    Waiting,
    Running,
    PartlyPlaced,
    WithoutPods,
    Preempted,
    Terminating,
    Released,
}

#[derive(Clone, Debug)]
struct Asked {
    members: usize,
    gpus: i64,
    second: Option<i64>,
    topology: Option<&'static str>,
    never: bool,
    deadline: Option<i64>,
}

#[derive(Clone, Debug)]
struct Scenario {
    nodes: Vec<(bool, i64)>,
    foreign: Vec<Foreign>,
    gangs: Vec<GangThere>,
    allowed: i32,
    asked: Asked,
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    use ForeignKind::{Guarded, Job, Nominated, Plain, Protected, Terminating, Unit};
    let kind = prop_oneof![3 => Just(Plain), 1 => Just(Guarded), 1 => Just(Protected),
        1 => Just(Terminating), 1 => Just(Nominated), 3 => Just(Job),
        2 => Just(Unit)];
    let foreign = (0..8usize, 1..5i64, 0..140i32, 0..9000i64, kind).prop_map(
        |(node, gpus, priority, age, kind)| Foreign {
            node,
            gpus,
            priority,
            age,
            kind,
        },
    );
    let state = prop_oneof![
        3 => Just(GangThereState::Waiting), 4 => Just(GangThereState::Running),
        2 => Just(GangThereState::PartlyPlaced), 1 => Just(GangThereState::WithoutPods),
        1 => Just(GangThereState::Preempted), 1 => Just(GangThereState::Terminating),
        1 => Just(GangThereState::Released),
    ];
    let shape = (1..7usize, 1..5i64, prop::option::weighted(0.3, 1..5i64));
    let who = (
        0..14i32,
        0..9000i64,
        any::<bool>(),
        prop::bool::weighted(0.2),
    );
    let gang = (
        shape,
        who,
        state,
        0..8usize,
        prop::option::weighted(0.2, 0..8usize),
        prop::option::weighted(0.5, 0..8usize),
        prop::option::weighted(0.3, 9000..20_000i64),
    )
        .prop_map(
            |(
                (members, gpus, second),
                (priority, age, whole, sticky),
                state,
                first,
                refused,
                reserved,
                deadline,
            )| {
                GangThere {
                    members,
                    gpus,
                    second,
                    priority: priority * 10,
                    age,
                    whole,
                    sticky,
                    state,
                    first,
                    refused,
                    reserved,
                    deadline,
                }
            },
        );
    let topology =
        prop_oneof![2 => Just(None), 1 => Just(Some("Required")), 1 => Just(Some("Preferred"))];
    let asked = (
        1..5usize,
        1..5i64,
        prop::option::weighted(0.3, 1..5i64),
        topology,
        prop::bool::weighted(0.2),
        prop::option::weighted(0.3, 100..9000i64),
    )
        .prop_map(|(members, gpus, second, topology, never, deadline)| Asked {
            members,
            gpus,
            second,
            topology,
            never,
            deadline,
        });
    let nodes = prop::collection::vec((any::<bool>(), prop_oneof![Just(4i64), Just(8i64)]), 3..8);
    (
        nodes,
        prop::collection::vec(foreign, 0..8),
        prop::collection::vec(gang, 0..7),
        0..2i32,
        asked,
    )
        .prop_map(|(nodes, foreign, gangs, allowed, asked)| Scenario {
            nodes,
            foreign,
            gangs,
            allowed,
            asked,
        })
}

/// The objects of a scenario, as they are made one after the other.
struct Builder {
    objects: Objects,
    free: Vec<i64>,
}

fn name(node: usize) -> String {
    format!("n{node}")
}

fn groups(members: usize, gpus: i64, second: Option<i64>) -> Value {
    let group = |name: &str, size: usize, gpus: i64| {
        json!({"name": name, "size": size, "template": {"spec": {"containers": [
            {"name": "t", "image": "i", "resources": {"limits": {GPU: gpus}}}]}}})
    };
    let mut all = vec![group("workers", members, gpus)];
    all.extend(second.map(|gpus| group("head", 1, gpus)));
    json!(all)
}

/// A workload and its pod group.
fn gang_objects(
    workload_name: &str,
    groups: &Value,
    spec: &Value,
    group: &Value,
) -> (Value, Value) {
    let uid = format!("uid-{workload_name}");
    let owner = json!([{"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "name": workload_name, "uid": uid, "controller": true}]);
    let mut tw = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": workload_name, "namespace": "ml", "uid": uid, "generation": 1},
        "spec": {"groups": groups}, "status": {"gangs": [{"key": "workload", "started": true}]}});
    merge(&mut tw["spec"], spec);
    let size: u64 = groups
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["size"].as_u64().unwrap())
        .sum();
    let mut pg = json!({"apiVersion": "scheduling.lockstep.dev/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": pod_group_name(workload_name, &uid, "workload"), "namespace": "ml",
            "uid": format!("uid-group-{workload_name}"), "generation": 1, "ownerReferences": owner},
        "spec": {"workloadRef": {"workloadName": workload_name, "templateName": "workload"}, "gangKey": "workload",
            "schedulingPolicy": {"gang": {"minCount": size}}, "disruptionMode": {"all": {}}}});
    merge(&mut pg, group);
    (tw, pg)
}

fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

impl Builder {
    fn new(scenario: &Scenario) -> Self {
        let sticky = PriorityClassRecord {
            preemption_priority: Some(95),
            ..class("sticky", 10)
        };
        let rack = |second: bool| if second { "b" } else { "a" };
        Self {
            objects: Objects {
                classes: vec![class("high", 80), sticky],
                nodes: (0..)
                    .zip(&scenario.nodes)
                    .map(|(n, &(second, gpus))| node(&name(n), rack(second), gpus))
                    .collect(),
                budgets: vec![budget("web", scenario.allowed)],
                ..Objects::default()
            },
            free: scenario.nodes.iter().map(|n| n.1).collect(),
        }
    }

    /// The next node with so much free, from this one on.
    fn take(&mut self, first: usize, gpus: i64) -> Option<String> {
        let count = self.free.len();
        let found = (0..count)
            .map(|i| (first + i) % count)
            .find(|&n| self.free[n] >= gpus)?;
        self.free[found] -= gpus;
        Some(name(found))
    }

    fn foreign(&mut self, number: usize, foreign: &Foreign) -> bool {
        let at = foreign.node % self.free.len();
        if self.free[at] < foreign.gpus {
            return false;
        }
        self.free[at] -= foreign.gpus;
        let metadata = match foreign.kind {
            ForeignKind::Guarded => json!({"labels": {"app": "web"}}),
            ForeignKind::Protected => {
                json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet",
                "name": "d", "uid": "d", "controller": true}]})
            }
            ForeignKind::Terminating => json!({"deletionTimestamp": ago(-30)}),
            ForeignKind::Unit => {
                json!({"labels": {"batch.kubernetes.io/job-completion-index": number.to_string()},
                    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j",
                        "controller": true}]})
            }
            ForeignKind::Plain | ForeignKind::Nominated | ForeignKind::Job => json!({}),
        };
        let mut made = pod(
            &format!("p{number}"),
            &name(at),
            foreign.gpus,
            foreign.priority,
            foreign.age,
            &metadata,
        );
        if foreign.kind == ForeignKind::Nominated {
            made.nominated = made.bound.take();
            made.started = None;
        }
        if foreign.kind == ForeignKind::Job {
            made.may_end = true;
            made.ends = number
                .is_multiple_of(2)
                .then(|| now() + TimeDelta::seconds(foreign.age));
        }
        self.objects.pods.push(made);
        true
    }

    fn gang(&mut self, number: usize, gang: &GangThere) {
        let workload_name = format!("g{number}");
        let mut status = json!({"queuedAt": ago(gang.age)});
        if let Some(refused) = gang.refused {
            let node = name(refused % self.free.len());
            status["excludedNodes"] =
                json!([{"node": node, "reason": "Unschedulable", "until": ago(-300)}]);
        }
        if gang.state == GangThereState::Preempted {
            status["conditions"] = json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                "lastTransitionTime": ago(5)}]);
        }
        let mut members: Vec<(String, i64)> = (0..gang.members)
            .map(|i| (format!("workers/0/{i}"), gang.gpus))
            .collect();
        members.extend(gang.second.map(|gpus| ("head/0/0".to_owned(), gpus)));
        if gang.state == GangThereState::Waiting {
            members.clear();
        }
        if gang.state == GangThereState::PartlyPlaced {
            members.pop();
        }
        let placed: Vec<(String, i64, String)> = members
            .into_iter()
            .filter_map(|(member, gpus)| Some((member, gpus, self.take(gang.first, gpus)?)))
            .collect();
        if !placed.is_empty() {
            let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (member, _, node) in &placed {
                nodes.entry(node).or_default().push(member);
            }
            let nodes: Vec<Value> = nodes
                .into_iter()
                .map(|(node, members)| json!({"node": node, "members": members}))
                .collect();
            status["placement"] = json!({"id": "p", "decidedAt": ago(gang.age), "members": placed.len(), "nodes": nodes});
        }
        if let Some(reserved) = gang.reserved {
            let node = name(reserved % self.free.len());
            if placed.is_empty() {
                let nodes = json!([{"node": node, "members": {"workers": gang.members}}]);
                status["reservation"] = json!({"since": ago(30), "nodes": nodes});
            } else if gang.deadline.is_some() {
                status["placement"]["backfill"] =
                    json!({"endsBy": ago(-7000), "reservedFor": ["uid-group-g0"]});
            }
        }
        let mut spec = json!({"priority": gang.priority});
        if gang.whole {
            spec["disruptionMode"] = json!({"all": {}});
        } else {
            spec["disruptionMode"] = json!({"all": null, "single": {}});
        }
        if gang.sticky {
            spec["priorityClassName"] = json!("sticky");
        }
        let (mut tw, pg) = gang_objects(
            &workload_name,
            &groups(gang.members, gang.gpus, gang.second),
            &json!({"activeDeadlineSeconds": gang.deadline}),
            &json!({"spec": spec, "status": status}),
        );
        tw["status"]["startTime"] = json!(ago(gang.age));
        if gang.state == GangThereState::Released {
            tw["status"]["gangs"][0]["released"] = json!("p");
        }
        if gang.state != GangThereState::WithoutPods {
            for (member, gpus, node) in &placed {
                let made = member_pod(&tw, &pg, member, *gpus, node, gang);
                self.objects.pods.push(made);
            }
        }
        self.objects.workloads.push(workload(tw));
        self.objects
            .groups
            .push(serde_json::from_value(pg).unwrap());
    }
}

fn member_pod(
    tw: &Value,
    pg: &Value,
    member: &str,
    gpus: i64,
    node: &str,
    gang: &GangThere,
) -> Pod {
    let parts: Vec<&str> = member.split('/').collect();
    let mut metadata = json!({"ownerReferences": pg["metadata"]["ownerReferences"], "labels": {
            labels::GROUP: parts[0], labels::REPLICA: parts[1], labels::INDEX: parts[2],
            labels::POD_GROUP: pg["metadata"]["name"]}});
    if matches!(
        gang.state,
        GangThereState::Terminating | GangThereState::Released
    ) {
        metadata["deletionTimestamp"] = json!(ago(-20));
    }
    let name = format!(
        "{}-{}",
        tw["metadata"]["name"].as_str().unwrap(),
        member.replace('/', "-")
    );
    pod(&name, node, gpus, gang.priority, gang.age, &metadata)
}

/// The manager's objects and cycle, with the asked gang as one of its own: as the cycle leaves it, and
/// how many others reserve.
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
        let class = group.spec.gang.priority_class_name.as_ref();
        let class = class.and_then(|name| objects.classes.iter().find(|c| c.name == *name));
        let sources = GangSources {
            key: &Key::of(group),
            group,
            workload,
            preemption_priority: class.and_then(|c| c.preemption_priority),
            storage: None,
            pods: PodSource::Templates,
        };
        gangs.push(Arc::new(sources.read(None).unwrap()));
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
    let reserve = others.iter().filter(|g| g.status.reservation.is_some());
    let reserve = reserve.count();
    (input, new.into_iter().next().unwrap(), reserve)
}

type Outcome = (
    Verdict,
    BTreeMap<String, String>,
    BTreeSet<String>,
    Option<String>,
);

fn of_manager(input: &SchedulingInput, gang: &GangState) -> Outcome {
    let nodes = |nodes: &lockstep_scheduler::decision::MemberNodes| {
        let named = nodes.iter();
        named
            .map(|(m, &n)| (m.to_string(), input.cluster.node_name(n).to_owned()))
            .collect()
    };
    match &gang.decision {
        Decision::Placed(placed) => (Verdict::Fits, nodes(placed), BTreeSet::new(), None),
        Decision::AfterTerminations(placed) => (
            Verdict::FitsOnceOthersHaveLeft,
            nodes(placed),
            BTreeSet::new(),
            None,
        ),
        Decision::Preempts(preemption) => (
            Verdict::Preempts,
            nodes(&preemption.nodes),
            preemption
                .victims
                .iter()
                .map(|v| v.victim.uid.clone())
                .collect(),
            None,
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

fn of_whatif(answer: &GangAnswer) -> Outcome {
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

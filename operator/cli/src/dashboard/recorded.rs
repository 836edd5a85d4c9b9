//! A snapshot file as what was read. A file has no statuses: phases, conditions and histories are
//! absent.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use lockstep_api::condition::{Condition, ConditionStatus, types};
use lockstep_api::member::MemberSet;
use lockstep_api::names::WHOLE;
use lockstep_api::scheduling::{
    GangSpec, NodePlacement, Placement, PodGroupSpec, PodGroupStatus, Preemption, WorkloadRef,
};
use lockstep_api::workload::Accounting;
use lockstep_api::{PodGroup, TrainingWorkload, TrainingWorkloadStatus};
use lockstep_model::parse::partial::PartialNode;
use lockstep_model::pods::pod_view::PartialCondition;
use lockstep_model::pods::resources::CPU;
use lockstep_model::snapshot::{AmountsByName, GangRecord, NodeRecord, PhaseRecord, PodRecord};
use lockstep_model::{CostModel, SnapshotFile};
use serde_json::{Value, json};

use super::view::ClusterView;

pub fn recorded(file: SnapshotFile) -> ClusterView {
    let mut by_workload: BTreeMap<(&str, &str), Vec<&GangRecord>> = BTreeMap::new();
    let unfinished = file
        .gangs
        .iter()
        .filter(|g| g.phase != PhaseRecord::Finished);
    for gang in unfinished {
        let name = (gang.namespace.as_str(), gang.workload.as_str());
        by_workload.entry(name).or_default().push(gang);
    }
    let workloads: Vec<TrainingWorkload> = by_workload
        .values()
        .filter_map(|gangs| workload(gangs))
        .collect();
    let groups = by_workload.values().flatten();
    let groups: Vec<PodGroup> = groups.map(|gang| pod_group(gang)).collect();
    let mut view = ClusterView {
        namespace: file.namespace.clone(),
        groups: Some(groups),
        nodes: Some(file.nodes.iter().map(|n| node(n, file.taken_at)).collect()),
        pods: Some(file.pods.iter().filter_map(PodRecord::to_pod).collect()),
        last_read: file.taken_at,
        snapshot: Some(file),
        ..ClusterView::default()
    };
    for workload in &workloads {
        view.note_workload(workload);
    }
    view.workloads = Some(workloads);
    view
}

fn quantities(amounts: &AmountsByName) -> BTreeMap<String, Quantity> {
    let text = |name: &str, amount: i64| match name {
        CPU => format!("{amount}m"),
        _ => amount.to_string(),
    };
    let all = amounts.iter();
    all.map(|(name, amount)| (name.clone(), Quantity(text(name, *amount))))
        .collect()
}

fn node(record: &NodeRecord, taken_at: DateTime<Utc>) -> PartialNode {
    let mut node = PartialNode::default();
    node.metadata.name = Some(record.name.clone());
    node.metadata.labels = Some(record.labels.clone());
    node.spec.taints.clone_from(&record.taints);
    node.spec.unschedulable = record.unschedulable;
    node.status.allocatable = quantities(&record.allocatable);
    let since = record.silent_since.unwrap_or(taken_at);
    let since = serde_json::from_value::<Time>(json!(since)).ok();
    node.status.conditions = vec![PartialCondition {
        type_: "Ready".to_owned(),
        status: if record.ready { "True" } else { "Unknown" }.to_owned(),
        last_transition_time: since,
        ..PartialCondition::default()
    }];
    node
}

/// A workload with groups of the recorded size and requests.
fn workload(gangs: &[&GangRecord]) -> Option<TrainingWorkload> {
    let first = gangs.first()?;
    let mut sizes: BTreeMap<String, (i32, i32)> = BTreeMap::new();
    let mut held: BTreeMap<String, i64> = BTreeMap::new();
    for gang in gangs {
        let ranges = gang.domains.iter().flat_map(|d| &d.members).cloned();
        for member in members(&ranges.collect::<Vec<_>>()) {
            let size = sizes.entry(member.group).or_default();
            *size = (size.0.max(member.replica + 1), size.1.max(member.index + 1));
        }
        let placed = gang.placement.iter().flat_map(|p| p.nodes.values());
        for member in placed.flat_map(|ranges| members(ranges)) {
            *held.entry(member.group).or_default() += 1;
        }
    }
    let mut accelerators = 0;
    let mut groups: Vec<Value> = Vec::new();
    let mut seen = BTreeSet::new();
    for template in gangs.iter().flat_map(|g| &g.templates) {
        let group = &template.group;
        let Some((replicas, size)) = sizes.get(group).filter(|_| seen.insert(group)) else {
            continue;
        };
        let each = CostModel::default().accelerators(&template.to_requests());
        accelerators += each * held.get(group).unwrap_or(&0);
        let named = quantities(&template.requests).into_iter();
        let requests = named.filter(|(name, _)| name != "pods");
        let requests: BTreeMap<String, Quantity> = requests.collect();
        let container = json!({"name": "c", "resources": {"requests": requests}});
        groups.push(json!({"name": group, "replicas": replicas, "size": size,
            "template": {"spec": {"containers": [container]}}}));
    }
    let spec = json!({"groups": groups, "scheduling": {"topology": {"levels": first.topology}}});
    let mut workload = TrainingWorkload::new(&first.workload, serde_json::from_value(spec).ok()?);
    workload.metadata.namespace = Some(first.namespace.clone());
    workload.metadata.uid = Some(first.workload_uid.clone());
    workload.status = Some(TrainingWorkloadStatus {
        accounting: Accounting {
            accelerators,
            ..Accounting::default()
        },
        ..TrainingWorkloadStatus::default()
    });
    Some(workload)
}

fn members(ranges: &[String]) -> MemberSet {
    MemberSet::parse(ranges).unwrap_or_default()
}

fn pod_group(gang: &GangRecord) -> PodGroup {
    let owner = OwnerReference {
        controller: Some(true),
        name: gang.workload.clone(),
        uid: gang.workload_uid.clone(),
        ..OwnerReference::default()
    };
    let placement = gang.placement.as_ref().map(|p| Placement {
        decided_at: p.decided_at,
        members: p.nodes.values().map(|m| members(m).len() as i32).sum(),
        nodes: p
            .nodes
            .iter()
            .map(|(node, members)| NodePlacement {
                node: node.clone(),
                members: members.clone(),
            })
            .collect(),
        backfill: p.backfill.clone(),
        ..Placement::default()
    });
    let target = Condition {
        type_: types::DISRUPTION_TARGET.to_owned(),
        status: ConditionStatus::True,
        reason: String::new(),
        message: String::new(),
        last_transition_time: gang.queued_at.unwrap_or_default(),
        observed_generation: 0,
    };
    PodGroup {
        metadata: ObjectMeta {
            name: Some(gang.name.clone()),
            namespace: Some(gang.namespace.clone()),
            uid: Some(gang.uid.clone()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: PodGroupSpec {
            workload_ref: WorkloadRef {
                workload_name: gang.workload.clone(),
                template_name: String::new(),
            },
            // The key of the only gang of a workload.
            gang_key: WHOLE.to_owned(),
            gang: GangSpec {
                priority: gang.priority,
                ..GangSpec::default()
            },
        },
        status: Some(PodGroupStatus {
            conditions: gang.disrupted.then_some(target).into_iter().collect(),
            placement,
            preemption: gang.preemption.as_ref().map(|p| Preemption {
                preemptor_uid: gang.uid.clone(),
                decided_at: p.decided_at,
                victims: p.victims.clone(),
                cost: p.victims.iter().map(|v| v.cost).sum(),
                ..Preemption::default()
            }),
            queued_at: gang.queued_at,
            excluded_nodes: gang.excluded_nodes.clone(),
            reservation: gang.reservation.clone(),
            move_target: gang.move_target.clone(),
            ..PodGroupStatus::default()
        }),
    }
}

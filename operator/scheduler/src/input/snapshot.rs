//! Converts gangs to records of a snapshot file, and back. Names every field, so that the compiler
//! reports a missing one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use lockstep_api::condition::{Condition, ConditionStatus, find, is_true, reasons, types, upsert};
use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::ids::{DomainKey, GangKey, Uid};
use lockstep_api::key::Key;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::{WHOLE, labels, pod_group_name};
use lockstep_api::scheduling::{
    NodeDemand, NodePlacement, Placement, PodGroupStatus, Preemption, PreemptionRequest, Refusal,
};
use lockstep_api::workload::{CheckpointRequest, DisruptionMode};
use lockstep_model::common::quantity::InvalidQuantity;
use lockstep_model::snapshot::{
    DomainLedgerRecord, DomainRecord, GangRecord, NodeRecord, PhaseRecord, PlacementRecord,
    PreemptionRecord, RefusalRecord, ReplacementRecord, TemplateRecord,
};
use lockstep_model::{Node, SnapshotFile, VolumeCheck, VolumeNeeds};

use crate::input::hold::{GangPhase, Hold};
use crate::input::intent_id::{intent_id, is_own};
use crate::input::members::{DomainInput, MembersInput, Replacement};
use crate::input::moves::{recorded_move, recorded_target};
use crate::input::{
    GangEnd, GangInput, PodGroupInput, SchedulingInput, TemplateInput, TemplateNodes, WorkloadInput,
};

/// Id of all placements from a file. Ids are only compared for equality.
const RECORDED: &str = "recorded";

/// Record of a gang. Refers to nodes by their positions in the file.
///
/// `label_keys`: labels of its templates that disruption budgets select by.
pub fn record(
    gang: &GangInput,
    nodes: &[Node],
    label_keys: &BTreeSet<&str>,
) -> Result<GangRecord, InvalidQuantity> {
    let GangInput {
        key,
        group,
        workload,
        gang: shape,
        preemption_priority,
        checkpoint_wait,
        provisioning: _,
    } = gang;
    let ledger = &workload.members;
    let requested = group.status.checkpoint_request.as_ref();
    let templates: Result<Vec<TemplateRecord>, InvalidQuantity> = workload
        .templates
        .iter()
        .map(|template| template_record(template, nodes, label_keys))
        .collect();
    let domains = shape
        .domains
        .iter()
        .map(|domain| domain_record(domain, ledger, requested));
    let status = &group.status;
    Ok(GangRecord {
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        uid: group.uid.as_str().to_owned(),
        workload: workload.name.clone(),
        workload_uid: workload.uid.as_str().to_owned(),
        spec: lockstep_api::scheduling::ObservedSpec {
            generation: group.generation,
            workload_generation: workload.generation,
        },
        phase: match gang.phase() {
            GangPhase::Active if held(status) => PhaseRecord::Held,
            GangPhase::Active => PhaseRecord::Active,
            GangPhase::Held(_) => PhaseRecord::Held,
            GangPhase::Finished => PhaseRecord::Finished,
        },
        priority: group.priority,
        preemption_priority: *preemption_priority,
        checkpoint_wait_seconds: checkpoint_wait.map(|wait| wait.as_secs()),
        preempts: group.preempts,
        whole: group.whole,
        basic: shape.basic,
        min_count: shape.min_count,
        topology: group.topology.clone(),
        domains: domains.collect(),
        templates: templates?,
        last_checkpoint: workload.checkpoint,
        on_request_seconds: workload.on_request.map(|time| time.num_seconds()),
        checkpoint_interval_seconds: workload.checkpoint_interval.map(|time| time.num_seconds()),
        checkpoint_request: requested.map(request_record),
        completed: ranges(&ledger.completed),
        finished: ranges(&ledger.finished),
        absent: ranges(&ledger.absent),
        node_lost_seconds: workload.node_lost.num_seconds(),
        avoid: workload.avoid.clone(),
        placement_tries: workload.placement_tries,
        queued_at: status.queued_at,
        placement: status
            .placement
            .as_ref()
            .map(|p| placement_record(p, gang.released())),
        preemption: status
            .preemption
            .as_ref()
            .map(|intent| preemption_record(intent, is_own(group, intent))),
        disrupted: is_true(&status.conditions, types::DISRUPTION_TARGET),
        refusal: status.refusal.as_ref().map(refusal_record),
        last_preemption: status.last_preemption.clone(),
        excluded_nodes: status.excluded_nodes.clone(),
        reservation: status.reservation.clone(),
        demand: status.demand.as_ref().map(NodeDemand::without_words),
        moving: workload.moving.as_ref().map(recorded_move),
        move_target: recorded_target(workload.moving.as_ref(), status),
        ends: match workload.ends {
            Some(GangEnd::At(end)) => Some(end),
            Some(GangEnd::After(_)) | None => None,
        },
        lasts: match workload.ends {
            Some(GangEnd::After(time)) => Some(time.num_seconds()),
            Some(GangEnd::At(_)) | None => None,
        },
    })
}

fn request_record(request: &PreemptionRequest) -> PreemptionRequest {
    PreemptionRequest {
        id: RECORDED.to_owned(),
        preemptor: String::new(),
        ..request.clone()
    }
}

fn domain_record(
    domain: &Domain,
    ledger: &MembersInput,
    requested: Option<&PreemptionRequest>,
) -> DomainRecord {
    let own = ledger.domains.iter().find(|l| l.key == domain.key);
    DomainRecord {
        ledger: own.map(|own| domain_ledger_record(own, requested)),
        members: ranges(&domain.members),
    }
}

fn placement_record(placement: &Placement, released: bool) -> PlacementRecord {
    PlacementRecord {
        decided_at: placement.decided_at,
        nodes: placement
            .nodes
            .iter()
            .map(|n| (n.node.clone(), n.members.clone()))
            .collect(),
        released,
        backfill: placement.backfill.clone(),
    }
}

fn preemption_record(intent: &Preemption, genuine: bool) -> PreemptionRecord {
    PreemptionRecord {
        decided_at: intent.decided_at,
        victims: intent.victims.clone(),
        genuine,
    }
}

fn refusal_record(refusal: &Refusal) -> RefusalRecord {
    RefusalRecord {
        at: refusal.at,
        tries: refusal.tries,
        observed: refusal.observed,
    }
}

/// True if the gang is held for claims or quotas, which the file does not contain.
fn held(status: &PodGroupStatus) -> bool {
    let condition = find(&status.conditions, types::POD_GROUP_INITIALLY_SCHEDULED);
    let held = [reasons::VOLUME_MISSING, reasons::QUOTA_EXCEEDED];
    status.placement.is_none() && condition.is_some_and(|c| held.contains(&c.reason.as_str()))
}

fn template_record(
    template: &TemplateInput,
    nodes: &[Node],
    label_keys: &BTreeSet<&str>,
) -> Result<TemplateRecord, InvalidQuantity> {
    let positions = nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| template.nodes.admit(node));
    let eligible = positions.map(|(at, _)| at).collect();
    let requests = template.requests.clone()?;
    let kept = template
        .labels
        .iter()
        .filter(|(key, _)| *key == labels::EVICTABLE || label_keys.contains(key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()));
    Ok(TemplateRecord {
        labels: kept.collect(),
        grace_seconds: template.grace.as_secs(),
        apart: template.apart.clone(),
        not_modelled: template.not_modelled.clone(),
        ..TemplateRecord::of(&template.group, &requests, &eligible)
    })
}

/// `requested`: the request before the preemption of the gang. Ids of others can contain names.
fn domain_ledger_record(
    ledger: &DomainInput,
    requested: Option<&PreemptionRequest>,
) -> DomainLedgerRecord {
    let id = |id: &str| match requested {
        Some(requested) if requested.id == id => RECORDED.to_owned(),
        _ => String::new(),
    };
    DomainLedgerRecord {
        incident: ledger.incident.as_ref().map(|incident| ReplacementRecord {
            members: ranges(&incident.members),
            old_pods: incident.old_pods.iter().cloned().collect(),
        }),
        healthy_since: ledger.healthy_since,
        request: ledger.request.as_ref().map(|request| CheckpointRequest {
            id: id(&request.id),
            ..request.clone()
        }),
    }
}

/// Input of a cycle from a file and further gangs. Leaves out gangs without UID.
pub fn scheduling_input(file: &SnapshotFile, more: Vec<GangInput>) -> SchedulingInput {
    let topology_keys = more.iter().flat_map(|g| &g.group.topology);
    let mut model = file.model(topology_keys.map(|t| t.key.as_str()));
    model.use_slots(more.iter().flat_map(GangInput::slots));
    let cluster = model.snapshot();
    let recorded = file.gangs.iter().filter_map(|gang| input(gang, file));
    let mut gangs: Vec<Arc<GangInput>> = recorded.chain(more).map(Arc::new).collect();
    gangs.sort_by(|a, b| a.key.cmp(&b.key));
    SchedulingInput {
        cluster,
        gangs,
        budgets: file
            .budgets
            .iter()
            .map(|b| Arc::new(b.to_budget()))
            .collect(),
        // Gangs held by a quota are recorded as held.
        quotas: Vec::new(),
        weights: Arc::new(file.namespace_weights.clone()),
    }
}

pub fn nodes(file: &SnapshotFile) -> Vec<Node> {
    file.nodes.iter().filter_map(NodeRecord::to_node).collect()
}

fn input(record: &GangRecord, file: &SnapshotFile) -> Option<GangInput> {
    let positions: HashMap<&str, usize> = record
        .templates
        .iter()
        .map(|t| t.group.as_str())
        .zip(0..)
        .collect();
    let uid = Uid::read(Some(&record.uid))?;
    let status = status(record);
    let templates = record.templates.iter().map(|t| template_input(t, file));
    let released = record.placement.as_ref().is_some_and(|p| p.released);
    Some(GangInput {
        key: Key::new(&record.namespace, &record.name),
        group: PodGroupInput {
            uid,
            resource_version: None,
            generation: record.spec.generation,
            deleting: false,
            priority: record.priority,
            preempts: record.preempts,
            whole: record.whole,
            topology: record.topology.clone(),
            assigned: status
                .placement
                .as_ref()
                .map(Placement::assignments)
                .map(Arc::new),
            status: Arc::new(status),
        },
        workload: Arc::new(WorkloadInput {
            uid: Uid::read(Some(&record.workload_uid))?,
            name: record.workload.clone(),
            generation: record.spec.workload_generation,
            phase: match record.phase {
                PhaseRecord::Active => GangPhase::Active,
                PhaseRecord::Held => GangPhase::Held(Hold::Suspended),
                PhaseRecord::Finished => GangPhase::Finished,
            },
            checkpoint: record.last_checkpoint,
            on_request: record.on_request_seconds.map(TimeDelta::seconds),
            checkpoint_interval: record.checkpoint_interval_seconds.map(TimeDelta::seconds),
            backend: None,
            templates: templates.collect(),
            admitted: 0,
            released: released.then(|| RECORDED.to_owned()),
            node_lost: TimeDelta::try_seconds(record.node_lost_seconds).unwrap_or(TimeDelta::MAX),
            avoid: record.avoid.clone(),
            moving: record.moving.clone(),
            placement_tries: record.placement_tries,
            ends: record.ends.map(GangEnd::At).or_else(|| {
                let lasts = TimeDelta::try_seconds(record.lasts?);
                lasts.map(GangEnd::After)
            }),
            quota: None,
            members: member_ledger(record),
        }),
        gang: Arc::new(Gang {
            key: gang_key(record),
            template: String::new(),
            basic: record.basic,
            min_count: record.min_count,
            disruption: if record.whole {
                DisruptionMode::All
            } else {
                DisruptionMode::Single
            },
            domains: record
                .domains
                .iter()
                .zip(0..)
                .map(|(domain, number)| Domain {
                    key: domain_key(number),
                    members: in_order_of_groups(&domain.members, &positions),
                })
                .collect(),
        }),
        preemption_priority: record.preemption_priority,
        checkpoint_wait: record.checkpoint_wait_seconds.map(Duration::from_secs),
        provisioning: None,
    })
}

fn template_input(template: &TemplateRecord, file: &SnapshotFile) -> TemplateInput {
    TemplateInput {
        group: template.group.clone(),
        labels: template.labels.clone(),
        grace: Duration::from_secs(template.grace_seconds),
        requests: Ok(Arc::new(template.to_requests())),
        nodes: TemplateNodes::Recorded(template.node_names(file).map(str::to_owned).collect()),
        volumes: VolumeNeeds::default(),
        storage: VolumeCheck::default(),
        charge: None,
        apart: template.apart.clone(),
        avoids: Vec::new(),
        pods_preempt: true,
        not_modelled: template.not_modelled.clone(),
        scheduler_name: String::new(),
        foreign_gate: None,
        not_admitted: None,
    }
}

fn member_ledger(record: &GangRecord) -> MembersInput {
    let domains = record
        .domains
        .iter()
        .zip(0..)
        .filter_map(|(domain, number)| {
            let DomainLedgerRecord {
                incident,
                healthy_since,
                request,
            } = domain.ledger.as_ref()?;
            Some(DomainInput {
                key: domain_key(number),
                incident: incident.as_ref().map(|incident| Replacement {
                    members: members(&incident.members),
                    old_pods: incident.old_pods.iter().cloned().collect(),
                }),
                healthy_since: *healthy_since,
                request: request.clone(),
            })
        });
    MembersInput {
        completed: members(&record.completed),
        finished: members(&record.finished),
        absent: members(&record.absent),
        domains: domains.collect(),
    }
}

fn status(record: &GangRecord) -> PodGroupStatus {
    let mut conditions = Vec::new();
    if record.disrupted {
        upsert(
            &mut conditions,
            Condition {
                type_: types::DISRUPTION_TARGET.to_owned(),
                status: ConditionStatus::True,
                reason: reasons::PREEMPTION_BY_SCHEDULER.to_owned(),
                message: String::new(),
                last_transition_time: chrono::DateTime::UNIX_EPOCH,
                observed_generation: record.spec.generation,
            },
        );
    }
    PodGroupStatus {
        conditions,
        placement: record.placement.as_ref().map(placement),
        preemption: record.preemption.as_ref().map(|p| intent(record, p)),
        queued_at: record.queued_at,
        refusal: record.refusal.as_ref().map(|refusal| Refusal {
            at: refusal.at,
            tries: refusal.tries,
            observed: refusal.observed,
            ..Refusal::default()
        }),
        last_preemption: record.last_preemption.clone(),
        withdrawn_preemptions: None,
        preemptor: None,
        checkpoint_request: record.checkpoint_request.clone(),
        excluded_nodes: record.excluded_nodes.clone(),
        move_target: record.move_target.clone(),
        reservation: record.reservation.clone(),
        queue: None,
        demand: record.demand.clone(),
    }
}

fn placement(record: &PlacementRecord) -> Placement {
    let nodes = record.nodes.iter().map(|(node, members)| NodePlacement {
        node: node.clone(),
        members: members.clone(),
    });
    let count: usize = record.nodes.values().map(|m| members(m).len()).sum();
    Placement {
        id: RECORDED.to_owned(),
        decided_at: record.decided_at,
        members: count as i32,
        nodes: nodes.collect(),
        backfill: record.backfill.clone(),
    }
}

fn intent(gang: &GangRecord, record: &PreemptionRecord) -> Preemption {
    let mut intent = Preemption {
        preemptor_uid: gang.uid.clone(),
        decided_at: record.decided_at,
        placement: RECORDED.to_owned(),
        victims: record.victims.clone(),
        ..Preemption::default()
    };
    if record.genuine {
        intent.id = intent_id(&intent);
    }
    intent
}

fn domain_key(number: i32) -> DomainKey {
    DomainKey::of_replica("domain", number)
}

fn ranges<'m>(members: impl IntoIterator<Item = &'m Member>) -> Vec<String> {
    let set: MemberSet = members.into_iter().cloned().collect();
    set.to_ranges()
}

/// Ranges were validated when the file was read.
fn members(ranges: &[String]) -> BTreeSet<Member> {
    let set = MemberSet::parse(ranges).unwrap_or_default();
    set.into_iter().collect()
}

/// Records name the pod group instead of the gang key. The pod group of a whole workload identifies
/// its key.
fn gang_key(record: &GangRecord) -> GangKey {
    let whole = pod_group_name(&record.workload, &record.workload_uid, WHOLE);
    let other = GangKey::read(Some(&record.name)).filter(|name| *name != *whole);
    other.unwrap_or_else(GangKey::whole)
}

/// Members in the order of the groups in the workload's spec, then by number.
fn in_order_of_groups(ranges: &[String], positions: &HashMap<&str, usize>) -> Vec<Member> {
    let mut by_group: BTreeMap<usize, Vec<Member>> = BTreeMap::new();
    for member in members(ranges) {
        let position = positions.get(member.group.as_str()).copied();
        by_group
            .entry(position.unwrap_or(usize::MAX))
            .or_default()
            .push(member);
    }
    by_group.into_values().flatten().collect()
}

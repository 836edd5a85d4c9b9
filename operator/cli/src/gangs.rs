//! Gangs of workloads as records: those that pod groups stand for, and those that a manifest would make.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::PodSpec;
use lockstep_api::condition::{is_true, types};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::{MANAGED_BY, annotations, pod_group_name};
use lockstep_api::scheduling::{PreemptionPolicy, TopologyConstraint};
use lockstep_api::workload::{DisruptionMode, Group, TopologyScope, TrainingWorkloadStatus};
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_lifecycle::gangs::{Gang, gangs};
use lockstep_model::pod::{PodSpecView, checkpoint};
use lockstep_model::requests::pod_requests;
use lockstep_model::snapshot::{CohortRecord, GangRecord, PriorityClassRecord, Standing};
use lockstep_model::{Cohort, Constraints, Node};

/// What a gang's pod group, or the workload's priority class, says.
struct Terms {
    priority: i32,
    preempts: bool,
    whole: bool,
    topology: Option<TopologyConstraint>,
}

/// The record of the gang that a pod group stands for; `None` when the workload has no such gang (any more), or did not
/// make the group.
pub fn recorded(
    workload: &TrainingWorkload,
    group: &PodGroup,
    nodes: &[Node],
    now: DateTime<Utc>,
) -> Result<Option<GangRecord>> {
    let meta = &workload.metadata;
    let (name, uid) = (meta.name.as_deref().unwrap_or_default(), meta.uid.as_deref().unwrap_or_default());
    let genuine = workload.spec.managed_by == MANAGED_BY
        && Some(pod_group_name(name, uid, &group.spec.gang_key)) == group.metadata.name;
    let Some(gang) = gangs(&workload.spec).into_iter().find(|g| genuine && g.key == group.spec.gang_key) else {
        return Ok(None);
    };
    let spec = &group.spec.gang;
    let terms = Terms {
        priority: spec.priority,
        preempts: spec.preemption_policy != Some(PreemptionPolicy::Never),
        whole: !gang.basic && spec.disruption_mode.all.is_some(),
        topology: spec.scheduling_constraints.iter().flat_map(|c| &c.topology).next().cloned(),
    };
    let none = TrainingWorkloadStatus::default();
    let status = workload.status.as_ref().unwrap_or(&none);
    let done = status.completed(&workload.spec.groups);
    let mut record = record(workload, &gang, terms, &done, nodes)?;
    record.name = group.metadata.name.clone().unwrap_or_default();
    record.uid = group.metadata.uid.clone().unwrap_or_default();
    record.standing = standing(workload, status, group);
    let placed = group.status.clone().unwrap_or_default();
    record.queued_at = placed.queued_at;
    record.victims = placed.preemption.iter().flat_map(|p| &p.victims).map(|v| v.uid.clone()).collect();
    for at in placed.placement.iter().flat_map(|p| &p.nodes) {
        // Ranges that do not parse seat nobody, as in the scheduler.
        let seated = MemberSet::parse(&at.members).unwrap_or_default().into_iter().filter(|m| !done.contains(m));
        let ranges = seated.collect::<MemberSet>().to_ranges();
        if !ranges.is_empty() {
            record.seats.insert(at.node.clone(), ranges);
        }
    }
    let ledger = status.gangs.iter().find(|g| g.key == gang.key);
    let avoided = ledger.into_iter().flat_map(|l| &l.avoid).filter(|a| a.until > now);
    record.avoid = avoided.map(|a| a.node.clone()).collect();
    record.resumed = status.domains.iter().filter_map(|d| d.healthy_since).max();
    Ok(Some(record))
}

/// The gangs, by key, that a manifest would make in a cluster with these priority classes.
pub fn asked(
    workload: &TrainingWorkload,
    classes: &[PriorityClassRecord],
    nodes: &[Node],
) -> Result<Vec<(String, GangRecord)>> {
    let scheduling = &workload.spec.scheduling;
    let class = match &workload.spec.priority_class_name {
        Some(name) => {
            let class = classes.iter().find(|c| c.name == *name);
            Some(class.ok_or_else(|| anyhow!("spec.priorityClassName: there is no priority class {name:?}"))?)
        }
        None => classes.iter().find(|c| c.default),
    };
    let preempts = match scheduling.preemption_policy {
        Some(policy) => policy != PreemptionPolicy::Never,
        None => class.is_none_or(|c| c.preempts),
    };
    gangs(&workload.spec)
        .into_iter()
        .map(|gang| {
            let terms = Terms {
                priority: class.map_or(0, |c| c.value),
                preempts,
                whole: !gang.basic && gang.disruption == DisruptionMode::All,
                topology: scheduling.topology.as_ref().map(|t| TopologyConstraint {
                    key: t.key.clone(),
                    mode: t.mode,
                    scope: t.scope,
                }),
            };
            let record = record(workload, &gang, terms, &BTreeSet::new(), nodes)?;
            Ok((gang.key, record))
        })
        .collect()
}

/// The part of the record that follows from the workload's spec.
fn record(
    workload: &TrainingWorkload,
    gang: &Gang,
    terms: Terms,
    done: &BTreeSet<Member>,
    nodes: &[Node],
) -> Result<GangRecord> {
    let Terms { priority, preempts, whole, topology } = terms;
    let meta = &workload.metadata;
    // Under replica scope a replica is asked for whole: the engine knows replicas of one size.
    let all = topology.as_ref().is_some_and(|t| t.scope == TopologyScope::Replica);
    let finished = gang.members().filter(|m| done.contains(*m)).count();
    let needed = gang.min_count.max(0) as usize;
    let mut cohorts = Vec::new();
    for (ix, group) in workload.spec.groups.iter().enumerate() {
        let of_group = gang.members().filter(|m| m.group == group.name && (all || !done.contains(*m)));
        let members: Vec<Member> = of_group.cloned().collect();
        if !members.is_empty() {
            let cohort = cohort(members, group, nodes).with_context(|| format!("spec.groups[{ix}].template"))?;
            cohorts.push(cohort);
        }
    }
    let safe = meta.annotations.as_ref().and_then(|a| a.get(annotations::LAST_CHECKPOINT));
    Ok(GangRecord {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: String::new(),
        uid: String::new(),
        workload: meta.name.clone().unwrap_or_default(),
        workload_uid: meta.uid.clone().unwrap_or_default(),
        priority,
        preempts,
        whole,
        basic: gang.basic,
        standing: Standing::Active,
        victims: Vec::new(),
        queued_at: None,
        min_count: if all { needed } else { needed.saturating_sub(finished) } as u32,
        cohorts,
        seats: BTreeMap::new(),
        topology,
        avoid: Vec::new(),
        last_checkpoint: safe.and_then(|text| checkpoint(text)),
        resumed: None,
    })
}

fn cohort(members: Vec<Member>, group: &Group, nodes: &[Node]) -> Result<CohortRecord> {
    let none = PodSpec::default();
    let spec = group.template.0.spec.as_ref().unwrap_or(&none);
    let constraints = Constraints::from(spec);
    // Positions in the list of nodes serve as ordinals.
    let admits = nodes.iter().enumerate().filter(|(_, node)| constraints.admit(node)).map(|(at, _)| at);
    let cohort = Cohort {
        members,
        requests: Arc::new(pod_requests(&PodSpecView::from(spec))?),
        eligible: Arc::new(admits.collect()),
    };
    Ok(CohortRecord::of(&cohort))
}

fn standing(workload: &TrainingWorkload, status: &TrainingWorkloadStatus, group: &PodGroup) -> Standing {
    let placed = group.status.clone().unwrap_or_default();
    let ledger = status.gangs.iter().find(|g| g.key == group.spec.gang_key);
    let ends = workload.metadata.deletion_timestamp.is_some()
        || group.metadata.deletion_timestamp.is_some()
        || is_true(&status.conditions, types::COMPLETE)
        || is_true(&status.conditions, types::FAILED)
        || is_true(&placed.conditions, types::DISRUPTION_TARGET);
    let id = placed.placement.map(|p| p.id);
    if ends || (id.is_some() && ledger.is_some_and(|l| l.released == id)) {
        Standing::Leaving
    } else if workload.spec.suspend || ledger.is_none_or(|l| l.backoff.is_some() || !l.started) {
        Standing::Held
    } else {
        Standing::Active
    }
}

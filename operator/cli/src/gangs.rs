//! Gangs of workloads as records: those that pod groups stand for, and those that a manifest would make.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use chrono::{DateTime, Utc};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::scheduling::{PreemptionPolicy, TopologyConstraint};
use lockstep_api::workload::DisruptionMode;
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_lifecycle::gangs::{Gang, gangs};
use lockstep_lifecycle::growth::finished;
use lockstep_model::gang::{self, seats};
use lockstep_model::snapshot::{CohortRecord, GangRecord, PriorityClassRecord, Standing};
use lockstep_model::{Cohort, GangView, Node, Template, Turnout};

/// What a gang's pod group, or the workload's priority class, says.
struct Terms {
    priority: i32,
    preemption_priority: Option<i32>,
    preempts: bool,
    whole: bool,
    topology: Option<TopologyConstraint>,
}

/// The record of the gang that a pod group stands for; `None` when the workload has no such gang (any more), or did not
/// make the group.
pub fn recorded(
    workload: &TrainingWorkload,
    group: &PodGroup,
    classes: &[PriorityClassRecord],
    nodes: &[Node],
    now: DateTime<Utc>,
) -> Result<Option<GangRecord>> {
    let view = GangView { group, workload };
    let Some(gang) = gangs(&workload.spec).into_iter().find(|g| view.genuine() && g.key == group.spec.gang_key) else {
        return Ok(None);
    };
    let class = group.spec.gang.priority_class_name.as_ref().and_then(|name| classes.iter().find(|c| c.name == *name));
    let terms = Terms {
        priority: view.priority(),
        preemption_priority: class.and_then(|c| c.preemption_priority),
        preempts: view.preempts(),
        whole: view.whole(gang.basic),
        topology: view.topology().cloned(),
    };
    let done = workload.status.as_ref().map(|s| finished(&workload.spec, s)).unwrap_or_default();
    let mut record = record(workload, &gang, terms, &done, nodes)?;
    record.name = group.metadata.name.clone().unwrap_or_default();
    record.uid = group.metadata.uid.clone().unwrap_or_default();
    record.standing = match view.standing() {
        _ if view.released() || view.disrupted() => Standing::Leaving,
        gang::Standing::Over => Standing::Leaving,
        gang::Standing::Held(_) => Standing::Held,
        gang::Standing::Active => Standing::Active,
    };
    let status = group.status.as_ref();
    record.queued_at = status.and_then(|s| s.queued_at);
    let intent = status.and_then(|s| s.preemption.as_ref());
    record.victims = intent.iter().flat_map(|p| &p.victims).map(|v| v.uid.clone()).collect();
    // A gang that is over, or has given its room back, keeps no seats.
    if view.standing() != gang::Standing::Over && !view.released() {
        record.seats = ranges(view.placement().map(seats).unwrap_or_default(), &done);
    }
    record.avoid = view.avoided(now).map(str::to_owned).collect();
    record.last_checkpoint = view.checkpoint();
    record.resumed = view.resumed(&gang.domains.iter().map(|d| d.key.as_str()).collect::<Vec<_>>());
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
                preemption_priority: class.and_then(|c| c.preemption_priority),
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
    let Terms { priority, preemption_priority, preempts, whole, topology } = terms;
    let meta = &workload.metadata;
    let groups = &workload.spec.groups;
    let members: Vec<&Member> = gang.members().collect();
    let turnout = Turnout::new(groups, &members, gang.min_count, done, topology.as_ref());
    let mut cohorts = Vec::new();
    for (ix, members) in turnout.by_group {
        let Some(group) = groups.get(ix) else { continue };
        let cohort = cohort(members, &Template::from(group), nodes);
        cohorts.push(cohort.with_context(|| format!("spec.groups[{ix}].template"))?);
    }
    Ok(GangRecord {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: String::new(),
        uid: String::new(),
        workload: meta.name.clone().unwrap_or_default(),
        workload_uid: meta.uid.clone().unwrap_or_default(),
        priority,
        preemption_priority,
        preempts,
        whole,
        basic: gang.basic,
        standing: Standing::Active,
        victims: Vec::new(),
        queued_at: None,
        min_count: turnout.needed,
        cohorts,
        seats: BTreeMap::new(),
        topology,
        avoid: Vec::new(),
        last_checkpoint: None,
        resumed: None,
    })
}

fn cohort(members: Vec<Member>, template: &Template, nodes: &[Node]) -> Result<CohortRecord> {
    // Positions in the list of nodes serve as ordinals.
    let admits = nodes.iter().enumerate().filter(|(_, node)| template.constraints.admit(node)).map(|(at, _)| at);
    let cohort = Cohort { members, requests: template.requests.clone()?, eligible: Arc::new(admits.collect()) };
    Ok(CohortRecord::of(&cohort))
}

/// Ranges of the members that have not succeeded, by node.
fn ranges(seats: lockstep_model::Seats, done: &BTreeSet<Member>) -> BTreeMap<String, Vec<String>> {
    let mut by_node: BTreeMap<String, MemberSet> = BTreeMap::new();
    for (member, node) in seats.into_iter().filter(|(m, _)| !done.contains(m)) {
        by_node.entry(node).or_default().insert(member);
    }
    by_node.into_iter().map(|(node, members)| (node, members.to_ranges())).collect()
}

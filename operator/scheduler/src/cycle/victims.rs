//! The victims of an intent as they are found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::scheduling::{Preemption, Victim};
use lockstep_engine::{Amounts, NodeIx};
use lockstep_model::victims::extended_resources;
use lockstep_model::{GangPhase, Pod, VictimFilter, VictimScope};

use crate::context::Context;
use crate::occupancy::{holds, spared, victim_priority};
use crate::state::GangState;

/// A victim as it is found.
pub(super) struct Found {
    pub victim: Victim,
    pub progress: Progress,
    /// What it holds.
    pub holds: Vec<(NodeIx, Amounts)>,
    /// The pod, for a single one.
    pub pod: Option<Arc<Pod>>,
    /// Whether it is marked as preempted.
    pub evicted: bool,
    /// When the grace period of the last of its pods is over that are leaving.
    pub ends: Option<DateTime<Utc>>,
}

/// How far a victim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It is there and has not been told.
    Here,
    /// It has been told and has not begun to leave.
    Told,
    /// It is terminating.
    Leaving,
    /// It holds nothing any more, or what it holds now it got later.
    Gone,
}

impl Found {
    /// Whether it has not begun to leave, so that it need not.
    pub fn stays(&self) -> bool {
        matches!(self.progress, Progress::Here | Progress::Told)
    }

    fn gone(victim: &Victim) -> Self {
        Self {
            victim: victim.clone(),
            progress: Progress::Gone,
            holds: Vec::new(),
            pod: None,
            evicted: false,
            ends: None,
        }
    }
}

/// Finds the victims; `None` when the intent names one that may not be a victim.
pub(super) fn find_victims(
    context: &Context<'_>,
    gangs: &[GangState],
    preemptor: usize,
    intent: &Preemption,
) -> Option<Vec<Found>> {
    let victims = intent.victims.iter();
    victims
        .map(|victim| match victim.kind.as_str() {
            "PodGroup" => find_gang(context, gangs, preemptor, intent, victim),
            "Pod" => find_pod(context, gangs, preemptor, intent, victim),
            _ => None,
        })
        .collect()
}

fn find_gang(
    context: &Context<'_>,
    gangs: &[GangState],
    preemptor: usize,
    intent: &Preemption,
    victim: &Victim,
) -> Option<Found> {
    let Some(at) = gangs.iter().position(|g| g.uid() == victim.uid) else {
        return Some(Found::gone(victim));
    };
    let gang = &gangs[at];
    let priority = gangs[preemptor].priority();
    let lower = victim_priority(context, gang) < priority || overstays(gang, &gangs[preemptor]);
    if at == preemptor || !gang.input.whole() || !lower {
        return None;
    }
    let held = holds(context, gang);
    let placement = gang.input.group.status.placement.as_ref();
    if held.is_empty() || placement.is_some_and(|p| p.decided_at > intent.decided_at) {
        return Some(Found::gone(victim));
    }
    let evicted = gang.disrupted();
    let told = gang.input.released() || gang.phase() == GangPhase::Finished || evicted;
    let mut pods = held.iter().map(|h| h.pod.as_ref());
    let progress = if pods.all(|pod| pod.is_some_and(|p| p.terminating.is_some())) {
        Progress::Leaving
    } else if told {
        Progress::Told
    } else {
        Progress::Here
    };
    Some(Found {
        progress,
        holds: held
            .iter()
            .map(|h| (h.node, context.amounts(&h.requests)))
            .collect(),
        evicted,
        ends: held
            .iter()
            .filter_map(|h| h.pod.as_ref()?.terminating)
            .max(),
        ..Found::gone(victim)
    })
}

fn find_pod(
    context: &Context<'_>,
    gangs: &[GangState],
    preemptor: usize,
    intent: &Preemption,
    victim: &Victim,
) -> Option<Found> {
    let in_way = || pod_on_nodes_of(context, &gangs[preemptor], &victim.uid);
    let with_unit = || pod_of_unit_of(context, &gangs[preemptor], intent, victim);
    let Some((node, pod)) = in_way().or_else(with_unit) else {
        return Some(Found::gone(victim));
    };
    let gang = gangs
        .iter()
        .find(|g| g.all_pods().any(|p| p.uid == pod.uid));
    let priority = gang.map_or(pod.priority, |gang| victim_priority(context, gang));
    let lower = priority < gangs[preemptor].priority()
        || gang.is_some_and(|gang| overstays(gang, &gangs[preemptor]));
    if pod.protected || !lower || gang.is_some_and(|gang| gang.input.whole()) {
        return None;
    }
    // What goes whole is a victim whole.
    let whole = gang.is_none() && context.cluster.goes_whole(&pod);
    if whole && victim.unit.as_deref() != pod.unit.as_ref().map(|unit| &*unit.key) {
        return None;
    }
    let progress = if pod.terminating.is_some() {
        Progress::Leaving
    } else {
        Progress::Here
    };
    Some(Found {
        progress,
        holds: vec![(node, context.amounts(&pod.requests))],
        evicted: pod.disrupted,
        ends: pod.terminating,
        pod: Some(pod),
        ..Found::gone(victim)
    })
}

/// Whether the configuration, which may have changed since the decision, or a label puts a victim out
/// of reach.
pub(super) fn is_spared(
    context: &Context<'_>,
    gangs: &[GangState],
    preemptor: usize,
    found: &Found,
) -> bool {
    let rules = &context.settings.rules.victims;
    let victim = &found.victim;
    let gang = match &found.pod {
        Some(pod) => gangs
            .iter()
            .find(|g| g.all_pods().any(|p| p.uid == pod.uid)),
        None => gangs.iter().find(|g| g.uid() == victim.uid),
    };
    if let Some(gang) = gang {
        return rules.exclude(&gang.input.key.namespace) || spared(context, gang);
    }
    let templates = gangs[preemptor].input.workload.templates.iter();
    let wanted = extended_resources(templates.filter_map(|t| t.requests.as_deref().ok()));
    let filter = VictimFilter {
        rules,
        wanted: &wanted,
        beyond_budgets: true,
        refused: &BTreeSet::new(),
    };
    let admits = |pod: &Pod| match &victim.unit {
        // Some pods of a unit may hold nothing that is wanted.
        Some(_) => rules.scope != VictimScope::Gangs && !rules.leave_alone(pod),
        None => filter.admits_pod(pod),
    };
    found.pod.as_ref().is_some_and(|p| !admits(p))
}

/// Whether a gang keeps another waiting longer than it has promised to it.
fn overstays(gang: &GangState, holder: &GangState) -> bool {
    gang.overstays().iter().any(|uid| uid == holder.uid())
}

/// A bound pod on a node of the gang's placement.
fn pod_on_nodes_of(
    context: &Context<'_>,
    gang: &GangState,
    uid: &str,
) -> Option<(NodeIx, Arc<Pod>)> {
    let nodes: BTreeSet<NodeIx> = gang
        .assigned_members()
        .filter_map(|(_, n)| context.cluster.ordinal(n))
        .collect();
    nodes.into_iter().find_map(|node| {
        let mut pods = context.cluster.pods_on(node);
        let pod = pods.find(|p| p.uid == uid && p.bound.is_some())?;
        Some((node, Arc::clone(pod)))
    })
}

/// A bound pod of a unit that goes whole, of which another pod is on a node of the gang's placement, or
/// whose eviction has begun.
fn pod_of_unit_of(
    context: &Context<'_>,
    gang: &GangState,
    intent: &Preemption,
    victim: &Victim,
) -> Option<(NodeIx, Arc<Pod>)> {
    let unit = victim.unit.as_deref()?;
    let same = |v: &&Victim| v.namespace == victim.namespace && v.unit.as_deref() == Some(unit);
    let mut all = intent.victims.iter().filter(same);
    let begun = victim.eviction_requested_at.is_some();
    let in_way = |v: &Victim| pod_on_nodes_of(context, gang, &v.uid).is_some();
    if !begun && !all.any(in_way) {
        return None;
    }
    let mut listed = context.cluster.listed_pods().iter();
    let found = listed.find(|l| l.bound && l.pod.uid == victim.uid)?;
    let of_unit = found.pod.namespace == victim.namespace
        && found.pod.unit.as_ref().is_some_and(|u| &*u.key == unit);
    of_unit.then(|| (found.node, Arc::clone(&found.pod)))
}

/// Takes what a victim holds out of what is free.
pub(super) fn hold(free: &mut BTreeMap<NodeIx, Amounts>, holds: &[(NodeIx, Amounts)]) {
    for (node, amounts) in holds {
        for (free, amount) in free.get_mut(node).into_iter().flatten().zip(amounts) {
            *free -= amount;
        }
    }
}

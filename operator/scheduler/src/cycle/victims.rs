//! Current state of the victims of an intent.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::condition::{ConditionStatus, find, reasons, types};
use lockstep_api::scheduling::{Preemption, Victim};
use lockstep_engine::{Amounts, NodeIx};
use lockstep_model::cluster::pod_list::Tags;
use lockstep_model::pods::resources::extended_resources;
use lockstep_model::{ListedPod, Pod, VictimFilter, VictimScope};

use crate::capacity::occupancy::{holds, spared, victim_priority};
use crate::context::Context;
use crate::gang::state::GangState;
use crate::input::hold::GangPhase;

pub(super) struct VictimState {
    pub victim: Victim,
    pub progress: Progress,
    pub holds: Vec<(NodeIx, Amounts)>,
    pub pod: Option<Arc<Pod>>,
    /// Index of the victim gang, or of the gang of the victim pod.
    pub gang: Option<usize>,
    pub evicted: bool,
    /// End of the last grace period of its terminating pods.
    pub ends: Option<DateTime<Utc>>,
}

/// A valid intent with its victims.
pub(super) struct ValidIntent {
    /// Index of the preemptor.
    pub at: usize,
    pub intent: Preemption,
    pub states: Vec<VictimState>,
}

impl ValidIntent {
    pub fn victims(&self, progress: Progress) -> impl Iterator<Item = &VictimState> {
        self.states.iter().filter(move |f| f.progress == progress)
    }

    /// Victims that still hold capacity.
    pub fn present(&self) -> impl Iterator<Item = &VictimState> {
        self.states
            .iter()
            .filter(|f| f.progress != Progress::Released)
    }

    /// Time of the last eviction request (before that, the decision or the end of the wait for
    /// checkpoints), or the end of the last grace period if later.
    pub fn since(&self, context: &Context<'_>) -> DateTime<Utc> {
        let requests = self.intent.victims.iter();
        let evicted_at = requests.filter_map(|v| v.eviction_requested_at).max();
        let waited = || self.intent.checkpoint_wait().map(|(_, end)| end);
        let begin = evicted_at.or_else(waited).unwrap_or(self.intent.decided_at);
        let in_time = |end: &DateTime<Utc>| context.settings.rules.in_time(*end, context.now);
        let ends = self.present().filter_map(|f| f.ends.filter(in_time));
        ends.fold(begin, Ord::max)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Exists, without an eviction request.
    Pending,
    /// Eviction requested, not terminating yet.
    EvictionRequested,
    Terminating,
    /// Holds no capacity, or obtained it later.
    Released,
}

impl Progress {
    /// True if pods can be nominated in its place. `early`: before its release, too.
    pub fn makes_way(self, early: bool) -> bool {
        match self {
            Self::Pending | Self::EvictionRequested => false,
            Self::Terminating => early,
            Self::Released => true,
        }
    }
}

impl VictimState {
    /// True if it is not terminating, so it can stay.
    pub fn stays(&self) -> bool {
        matches!(
            self.progress,
            Progress::Pending | Progress::EvictionRequested
        )
    }

    fn released(victim: &Victim) -> Self {
        Self {
            victim: victim.clone(),
            progress: Progress::Released,
            holds: Vec::new(),
            pod: None,
            gang: None,
            evicted: false,
            ends: None,
        }
    }
}

/// All victims of preemptions in progress, looked up together. There can be thousands.
pub(super) struct NamedVictims<'c> {
    bound: HashMap<&'c str, &'c ListedPod>,
    /// Index of the victim gang or of the pod's gang, by UID.
    gangs: HashMap<String, usize>,
}

impl<'c> NamedVictims<'c> {
    pub fn collect(context: &Context<'c>, gangs: &[GangState]) -> Self {
        let intents = gangs.iter().filter_map(|g| g.status.preemption.as_ref());
        let victims = intents.flat_map(|intent| &intent.victims);
        let named: HashSet<&str> = victims.map(|v| v.uid.as_str()).collect();
        let mut out = Self {
            bound: HashMap::new(),
            gangs: HashMap::new(),
        };
        if named.is_empty() {
            return out;
        }
        let tags = Tags::of(named.iter().copied());
        let listed = context.cluster.listed_pods();
        let bound = listed
            .filter(|l| l.bound && tags.contains(l.tag))
            .map(|listed| (listed.pod.uid.as_str(), listed));
        out.bound = bound.filter(|(uid, _)| named.contains(uid)).collect();
        for (at, gang) in gangs.iter().enumerate() {
            let members = gang.all_pods().map(|pod| pod.uid.as_str());
            for uid in members.chain([gang.uid()]).filter(|u| named.contains(u)) {
                out.gangs.entry(uid.to_owned()).or_insert(at);
            }
        }
        out
    }
}

struct Pursuit<'s, 'c> {
    context: &'s Context<'c>,
    gangs: &'s [GangState],
    preemptor: usize,
    intent: &'s Preemption,
    named: &'s NamedVictims<'c>,
    nodes: HashSet<NodeIx>,
    /// Namespace and key of whole units with a pod on these nodes.
    units_in_way: HashSet<(&'s str, &'s str)>,
}

/// `None` if the intent names an invalid victim.
pub(super) fn find_victims(
    context: &Context<'_>,
    gangs: &[GangState],
    named: &NamedVictims<'_>,
    preemptor: usize,
    intent: &Preemption,
) -> Option<Vec<VictimState>> {
    let nodes = gangs[preemptor]
        .assigned_members()
        .filter_map(|(_, node)| context.cluster.ordinal(node.as_str()));
    let mut pursuit = Pursuit {
        context,
        gangs,
        preemptor,
        intent,
        named,
        nodes: nodes.collect(),
        units_in_way: HashSet::new(),
    };
    let in_way = intent.victims.iter().filter(|v| pursuit.is_in_way(v));
    let units = in_way.filter_map(|v| Some((v.namespace.as_str(), v.unit.as_deref()?)));
    pursuit.units_in_way = units.collect();
    let victims = intent.victims.iter();
    victims
        .map(|victim| match victim.kind.as_str() {
            "PodGroup" => pursuit.find_gang(victim),
            "Pod" => pursuit.find_pod(victim),
            _ => None,
        })
        .collect()
}

impl<'s> Pursuit<'s, '_> {
    fn find_gang(&self, victim: &Victim) -> Option<VictimState> {
        let at = self.named.gangs.get(&victim.uid).copied();
        let Some(at) = at.filter(|&at| self.gangs[at].uid() == victim.uid) else {
            return Some(VictimState::released(victim));
        };
        let (context, gang, preemptor) =
            (self.context, &self.gangs[at], &self.gangs[self.preemptor]);
        let lower = victim_priority(context, gang) < preemptor.priority();
        let lower = lower || overstays(gang, preemptor);
        if at == self.preemptor || !gang.input.whole() || !lower {
            return None;
        }
        let held = holds(context, gang);
        let placement = gang.input.group.status.placement.as_ref();
        let released = VictimState {
            gang: Some(at),
            ..VictimState::released(victim)
        };
        let anew = placement.is_some_and(|p| p.decided_at > self.intent.decided_at);
        let in_way = held.iter().any(|h| self.nodes.contains(&h.node));
        if held.is_empty() || anew && (!in_way || has_left_since(gang, self.intent.decided_at)) {
            return Some(released);
        }
        let evicted = gang.disrupted();
        let requested = gang.input.released() || gang.phase() == &GangPhase::Finished || evicted;
        let mut pods = held.iter().map(|h| h.pod.as_ref());
        let progress = if pods.all(|pod| pod.is_some_and(|p| p.terminating.is_some())) {
            Progress::Terminating
        } else if requested {
            Progress::EvictionRequested
        } else {
            Progress::Pending
        };
        Some(VictimState {
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
            ..released
        })
    }

    fn find_pod(&self, victim: &Victim) -> Option<VictimState> {
        let (context, preemptor) = (self.context, &self.gangs[self.preemptor]);
        let Some(ListedPod { node, pod, .. }) = self.pod_to_go(victim) else {
            return Some(VictimState::released(victim));
        };
        let at = self.named.gangs.get(pod.uid.as_str()).copied();
        let gang = at.map(|at| &self.gangs[at]);
        let priority = gang.map_or_else(
            || context.cluster.victim_priority(pod),
            |gang| victim_priority(context, gang),
        );
        let lower =
            priority < preemptor.priority() || gang.is_some_and(|gang| overstays(gang, preemptor));
        if pod.protected || !lower || gang.is_some_and(|gang| gang.input.whole()) {
            return None;
        }
        // A unit that is evicted whole must be a victim as a whole.
        let unit = context
            .cluster
            .unit(pod)
            .filter(|unit| unit.whole)
            .filter(|_| gang.is_none());
        if unit.is_some_and(|unit| victim.unit.as_deref() != Some(unit.key)) {
            return None;
        }
        let progress = if pod.terminating.is_some() {
            Progress::Terminating
        } else {
            Progress::Pending
        };
        Some(VictimState {
            progress,
            holds: vec![(*node, context.amounts(&pod.requests))],
            gang: at,
            evicted: pod.disrupted,
            ends: pod.terminating,
            pod: Some(Arc::clone(pod)),
            ..VictimState::released(victim)
        })
    }

    /// True if the victim is bound to a node of the preemptor's placement.
    fn is_in_way(&self, victim: &Victim) -> bool {
        let bound = self.named.bound.get(victim.uid.as_str());
        bound.is_some_and(|listed| self.nodes.contains(&listed.node))
    }

    /// The victim's bound pod on the preemptor's nodes. A pod elsewhere counts if its eviction has
    /// begun, or if its whole unit has a pod there.
    fn pod_to_go(&self, victim: &Victim) -> Option<&'s ListedPod> {
        let listed = *self.named.bound.get(victim.uid.as_str())?;
        if self.is_in_way(victim) {
            return Some(listed);
        }
        let unit = victim.unit.as_deref()?;
        let with_unit = victim.eviction_requested_at.is_some()
            || self
                .units_in_way
                .contains(&(victim.namespace.as_str(), unit));
        let of_unit = *listed.pod.namespace == *victim.namespace
            && self
                .context
                .cluster
                .unit(&listed.pod)
                .is_some_and(|u| u.key == unit);
        (with_unit && of_unit).then_some(listed)
    }
}

/// True if a gang has released all its capacity since then. A new placement alone proves nothing: a
/// gang gets one too when it grows or loses a member.
fn has_left_since(gang: &GangState, then: DateTime<Utc>) -> bool {
    let status = &gang.status;
    let preempted = find(&status.conditions, types::DISRUPTION_TARGET).is_some_and(|c| {
        c.status == ConditionStatus::False
            && c.reason == reasons::PREEMPTED
            && c.last_transition_time > then
    });
    preempted || status.queued_at.is_some_and(|at| at > then)
}

/// True if a label or the current configuration protects the victim.
pub(super) fn is_spared(
    context: &Context<'_>,
    gangs: &[GangState],
    preemptor: usize,
    state: &VictimState,
) -> bool {
    let rules = &context.settings.rules.victims;
    if let Some(gang) = state.gang.map(|at| &gangs[at]) {
        let in_kueue = |gang: &GangState| gang.input.workload.quota.is_some();
        let admitted = in_kueue(gang) && rules.protect_admitted(in_kueue(&gangs[preemptor]));
        return admitted || rules.exclude(&gang.input.key.namespace) || spared(context, gang);
    }
    let Some(pod) = &state.pod else {
        return false;
    };
    let templates = gangs[preemptor].input.workload.templates.iter();
    let requested = extended_resources(templates.filter_map(|t| t.requests.as_deref().ok()));
    let filter = VictimFilter {
        rules,
        requested: &requested,
        beyond_budgets: true,
        refused: &BTreeSet::new(),
    };
    if state.victim.unit.is_some() {
        // Pods of a unit need not hold wanted resources.
        rules.scope == VictimScope::Gangs || rules.leave_alone(pod)
    } else {
        !filter.admits_pod(pod)
    }
}

/// True if a gang holds capacity past its promise to another gang.
fn overstays(gang: &GangState, holder: &GangState) -> bool {
    gang.overstays().iter().any(|uid| uid == holder.uid())
}

/// Takes the victim's capacity from the free capacity; with -1, returns it.
pub(super) fn hold(free: &mut BTreeMap<NodeIx, Amounts>, holds: &[(NodeIx, Amounts)], times: i64) {
    for (node, amounts) in holds {
        for (free, amount) in free.get_mut(node).into_iter().flatten().zip(amounts) {
            *free -= amount * times;
        }
    }
}

/// UIDs of victims that can stay, most important first. `after`: free capacity without all victims.
/// Pods of a unit stay together if none of them is terminating.
pub(super) fn can_stay<'f>(
    intent: &Preemption,
    pending: &[&'f VictimState],
    mut after: BTreeMap<NodeIx, Amounts>,
) -> BTreeSet<&'f str> {
    let mut units: BTreeMap<UnitOfVictim<'_>, Vec<&'f VictimState>> = BTreeMap::new();
    for state in pending {
        let unit = UnitOfVictim::of(&state.victim);
        units.entry(unit).or_default().push(state);
    }
    let mut named: BTreeMap<UnitOfVictim<'_>, usize> = BTreeMap::new();
    for victim in &intent.victims {
        *named.entry(UnitOfVictim::of(victim)).or_default() += 1;
    }
    units.retain(|unit, states| named.get(unit) == Some(&states.len()));
    let mut by_importance: Vec<Vec<&VictimState>> = units.into_values().collect();
    by_importance.sort_by_key(|unit| {
        let victims = || unit.iter().map(|f| &f.victim);
        (
            Reverse(victims().map(|v| v.priority).max()),
            Reverse(victims().map(|v| v.cost).fold(0, i64::saturating_add)),
            victims().map(|v| v.uid.clone()).min(),
        )
    });
    let mut spared = BTreeSet::new();
    for candidate in by_importance {
        let holds = || candidate.iter().map(|state| &state.holds);
        holds().for_each(|held| hold(&mut after, held, 1));
        let mut nodes = holds().flatten().filter_map(|(node, _)| after.get(node));
        if nodes.all(|free| free.iter().all(|&free| free >= 0)) {
            spared.extend(candidate.iter().map(|f| f.victim.uid.as_str()));
        } else {
            holds().for_each(|held| hold(&mut after, held, -1));
        }
    }
    spared
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UnitOfVictim<'v> {
    Alone(&'v str),
    Together(&'v str, &'v str),
}

impl<'v> UnitOfVictim<'v> {
    fn of(victim: &'v Victim) -> Self {
        match &victim.unit {
            Some(unit) => Self::Together(&victim.namespace, unit),
            None => Self::Alone(&victim.uid),
        }
    }
}

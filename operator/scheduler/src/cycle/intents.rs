//! Preemption intents. Each cycle validates them again and executes the next step.
//!
//! The intent is in the status of the preemptor's pod group. Everything else is derived from the
//! cluster. An intent with an invalid victim is void; victims that are gone need no action. Before
//! each eviction, the preemptor's pods exist, fit without the victims, and do not fit with them. So
//! a new leader resumes any intent, and a forged intent evicts no pod. [`Cycle::next_step`] only
//! reads; [`Cycle::apply_step`] writes the step.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::gangs::Assignments;
use lockstep_api::ids::NodeName;
use lockstep_api::scheduling::{Preemption, Victim};
use lockstep_engine::{Amounts, NodeIx};
use lockstep_model::Pod;

use super::budgets::{BudgetVerdict, guarded_pods};
use super::checkpoints::Deadlines;
use super::intend::lost_work;
use super::limits::GuardedPods;
use super::place::place_in_free;
use super::scheduler_timeout::has_timed_out;
use super::state::Cycle;
use super::victims::{
    NamedVictims, Progress, ValidIntent, VictimState, can_stay, find_victims, hold, is_spared,
};
use crate::capacity::Capacity;
use crate::capacity::occupancy::occupancy;
use crate::capacity::reservations::position;
use crate::context::Context;
use crate::gang::pending::NoPreemption;
use crate::gang::state::GangState;
use crate::input::hold::GangPhase;
use crate::input::intent_id::{intent_id, is_own};
use crate::messages;
use crate::pace::{LimitReached, pods_of};
use crate::plan::{PodRef, Step};
use crate::refusal::{
    forget_open_preemption, record_eviction, record_failed_preemption, record_silence,
    record_withdrawal, why_no_preemption,
};

/// More than all work can hold.
const UNLIMITED: i64 = i64::MAX / 2;

/// The next step of an intent.
enum IntentStep {
    Waits,
    Withdraws,
    /// The gang would not fit without the victims: other pods have taken the capacity.
    DoesNotFit,
    /// The gang moves to free capacity.
    Moves(Box<(Capacity, GangState)>),
    /// Fewer victims are enough.
    Spares(Box<Preemption>),
    /// Dry runs or nominations.
    Requests(Vec<Step>),
    /// Requests checkpoints from these victims.
    RequestsCheckpoints(Deadlines),
    Evicts {
        /// Use of budgets by the victims.
        guarded: GuardedPods,
        /// Set if the victims wait for the eviction limit.
        paced: Option<LimitReached>,
    },
}

impl Cycle<'_> {
    /// Drops intents that are void whatever their victims.
    pub(super) fn drop_void_intents(&mut self) {
        for at in 0..self.gangs.len() {
            let gang = &mut self.gangs[at];
            let Some(intent) = &gang.status.preemption else {
                continue;
            };
            if gang.phase() == &GangPhase::Finished || gang.input.released() {
                gang.status_mut().preemption = None;
            } else if gang.phase() != &GangPhase::Active || !genuine(gang, intent) {
                self.withdraw(at);
            }
        }
    }

    pub(super) fn pursue_intents(&mut self) {
        let mut valid = self.valid_intents();
        let intents = self
            .gangs
            .iter()
            .filter_map(|g| g.status.preemption.as_ref());
        self.memory.evictions.read(intents, self.context.now);
        self.limits.evictions = self.memory.evictions.clone();
        // In the order of the queue, where gangs with nodes come first.
        valid.sort_by_cached_key(|valid| position(&self.gangs[valid.at]));
        for ValidIntent { intent, states, .. } in &valid {
            if intent.begun() {
                let guarded = guarded_pods(&self.context, &self.gangs, states);
                self.limits.spend(&guarded);
            }
        }
        for valid in &valid {
            self.pursue(valid);
        }
        // Victims of a dropped or reduced intent stay, unless they are terminating. If they counted
        // as terminating, the next intent would lack a victim, and so on forever.
        for valid in &valid {
            let intent = self.gangs[valid.at].status.preemption.iter();
            let victims = intent.flat_map(|intent| &intent.victims);
            let kept: HashSet<&str> = victims.map(|v| v.uid.as_str()).collect();
            for victim in valid.victims(Progress::Pending) {
                let uid = victim.victim.uid.as_str();
                if kept.contains(uid) {
                    self.pending_victims.insert(uid.to_owned());
                } else {
                    self.capacity.evicting.remove(uid);
                }
            }
        }
    }

    /// Withdraws intents with invalid or overdue victims, and returns the other intents.
    fn valid_intents(&mut self) -> Vec<ValidIntent> {
        let context = self.context;
        let mut out = Vec::new();
        let named = NamedVictims::collect(&context, &self.gangs);
        for at in 0..self.gangs.len() {
            let Some(intent) = self.gangs[at].status.preemption.clone() else {
                continue;
            };
            let states = find_victims(&context, &self.gangs, &named, at, &intent);
            // Terminating pods are lost anyway, so their capacity is usable. A new leader may lack
            // the result of admission, which was known at the decision.
            let why = why_no_preemption(&context, &self.gangs[at]);
            let gated = matches!(why, Some(NoPreemption::Gated(_)));
            let forbidden = why.is_some_and(|why| !matches!(why, NoPreemption::NotAdmitted(_)));
            let spares = |f: &VictimState| forbidden || is_spared(&context, &self.gangs, at, f);
            let states = states.filter(|all| !all.iter().any(|f| f.stays() && spares(f)));
            let Some(states) = states else {
                self.withdraw(at);
                // The dry run may not show the gate, so the decision would be repeated.
                if gated && !intent.begun() {
                    record_withdrawal(&context, &mut self.gangs[at]);
                }
                continue;
            };
            let valid = ValidIntent { at, intent, states };
            if valid.states.iter().any(|f| f.evicted) {
                record_eviction(&mut self.gangs[at], &valid.intent);
            }
            // Before its first eviction, an intent can wait for the eviction limit.
            let waits = !valid.intent.begun() && valid.victims(Progress::Pending).next().is_some();
            if !waits && self.is_overdue(&valid) {
                record_failed_preemption(&context, &mut self.gangs[at]);
                self.withdraw(at);
                continue;
            }
            let evicting = valid.present().map(|f| f.victim.uid.clone());
            self.capacity.evicting.extend(evicting);
            out.push(valid);
        }
        out
    }

    fn pursue(&mut self, valid: &ValidIntent) {
        let unbound = self.gangs[valid.at].unbound();
        let free = self.is_free_of_victims(valid, &unbound);
        let gang = &mut self.gangs[valid.at];
        if unbound.is_empty() {
            gang.status_mut().preemption = None;
            return;
        }
        if free && has_timed_out(&self.context, self.memory, gang, &unbound) {
            record_failed_preemption(&self.context, gang);
            record_silence(&self.context, gang, &unbound);
            self.withdraw(valid.at);
            return;
        }
        let step = self.next_step(valid, &unbound, free);
        self.apply_step(valid, step);
    }

    /// True if no victim holds capacity on the nodes of these members. A leaving gang may still hold
    /// other nodes.
    fn is_free_of_victims(&self, valid: &ValidIntent, unbound: &Assignments) -> bool {
        if valid.present().any(VictimState::stays) {
            return false;
        }
        let held: HashSet<NodeIx> = valid
            .present()
            .flat_map(|f| &f.holds)
            .map(|(node, _)| *node)
            .collect();
        let mut nodes = unbound
            .values()
            .filter_map(|n| self.context.cluster.ordinal(n.as_str()));
        nodes.all(|node| !held.contains(&node))
    }

    /// The next step of an intent. `unbound`: members without bound pods. `free`: no victim holds
    /// capacity on their nodes.
    fn next_step(&self, valid: &ValidIntent, unbound: &Assignments, free: bool) -> IntentStep {
        let gang = &self.gangs[valid.at];
        let pods = unbound
            .iter()
            .map(|(m, n)| Some((Arc::clone(gang.waiting_pod(m, n)?), n.clone())));
        // The workload is still creating pods, or a quota refuses them.
        let Some(pods) = pods.collect::<Option<Vec<_>>>() else {
            return if self.is_overdue(valid) {
                IntentStep::Withdraws
            } else {
                IntentStep::Waits
            };
        };
        // If the node is lost, an eviction would be in vain. If it returns, its capacity is free.
        let awaits_node = gang.awaits_node();
        if valid.victims(Progress::Pending).next().is_some() {
            if awaits_node {
                return IntentStep::Waits;
            }
            return self.next_eviction(valid, unbound);
        }
        // A victim of another intent has stayed, or other pods have taken the capacity.
        let after = || self.free_after_terminations(valid.at, unbound, &self.capacity.evicting);
        if free && !awaits_node && self.is_stuck(gang) && !fits(&after()) {
            return IntentStep::DoesNotFit;
        }
        // While a victim runs, kube-scheduler would preempt for visible pods by itself.
        let early = self.context.settings.keeps_nominations;
        if valid.states.iter().all(|f| f.progress.makes_way(early)) {
            let certain = self.own_and_evicted(valid);
            if certain.len() < self.capacity.evicting.len()
                && !fits(&self.free_after_terminations(valid.at, unbound, &certain))
            {
                return self.awaits_evictions(valid);
            }
            return IntentStep::Requests(nominations(&pods).collect());
        }
        IntentStep::Waits
    }

    /// The remaining evictions, unless the gang fits without them or with fewer victims.
    fn next_eviction(&self, valid: &ValidIntent, unbound: &Assignments) -> IntentStep {
        let (at, intent) = (valid.at, &valid.intent);
        let evicting = &self.capacity.evicting;
        let mut after = self.free_after_terminations(at, unbound, evicting);
        if !fits(&after) {
            return IntentStep::DoesNotFit;
        }
        if !intent.begun()
            && let Some(moved) = self.in_free_capacity(at)
        {
            return IntentStep::Moves(Box::new(moved));
        }
        let certain = self.own_and_evicted(valid);
        if certain.len() < evicting.len() {
            after = self.free_after_terminations(at, unbound, &certain);
        }
        if !fits(&after) {
            return self.awaits_evictions(valid);
        }
        let pending: Vec<&VictimState> = valid.victims(Progress::Pending).collect();
        let spared = can_stay(intent, &pending, after);
        if !spared.is_empty() {
            let victims = intent.victims.iter();
            let left = victims.filter(|v| !spared.contains(v.uid.as_str()));
            let reduced = reduced(intent.clone(), left.cloned().collect(), self.context.now);
            return IntentStep::Spares(Box::new(reduced));
        }
        if self.awaits_checkpoints(valid) {
            return IntentStep::Waits;
        }
        match self.check_budgets(intent, &pending) {
            BudgetVerdict::Allowed(guarded) => {
                let paced = self.reached_limit(valid);
                match self.worthwhile_checkpoints(valid) {
                    deadlines if deadlines.is_empty() || paced.is_some() => {
                        IntentStep::Evicts { guarded, paced }
                    }
                    deadlines => IntentStep::RequestsCheckpoints(deadlines),
                }
            }
            BudgetVerdict::NeedsDryRuns(_) if self.is_overdue(valid) => IntentStep::Withdraws,
            BudgetVerdict::NeedsDryRuns(dry_runs) => IntentStep::Requests(dry_runs),
            BudgetVerdict::Denied => IntentStep::Withdraws,
        }
    }

    fn apply_step(&mut self, valid: &ValidIntent, step: IntentStep) {
        let at = valid.at;
        match step {
            IntentStep::Waits => {}
            IntentStep::Withdraws => self.withdraw(at),
            IntentStep::DoesNotFit if valid.intent.begun() => {
                record_failed_preemption(&self.context, &mut self.gangs[at]);
                self.withdraw(at);
            }
            IntentStep::DoesNotFit => {
                self.withdraw(at);
                record_withdrawal(&self.context, &mut self.gangs[at]);
            }
            IntentStep::Moves(moved) => (self.capacity, self.gangs[at]) = *moved,
            IntentStep::Spares(reduced) => {
                self.gangs[at].status_mut().preemption = Some(*reduced);
            }
            IntentStep::Requests(steps) => self.steps.extend(steps),
            IntentStep::RequestsCheckpoints(deadlines) => {
                let intent = self.gangs[at].status_mut().preemption.iter_mut();
                for victim in intent.flat_map(|intent| &mut intent.victims) {
                    victim.checkpoint_deadline = deadlines.get(&victim.uid).copied();
                }
                if let Some(end) = deadlines.into_values().max() {
                    self.context.wake.at(end);
                }
            }
            IntentStep::Evicts { guarded, paced } => {
                self.limits.spend(&guarded);
                self.gangs[at].paced = paced;
                if let Some(reached) = paced {
                    self.limits.reached.get_or_insert(reached);
                    self.context.wake.at(reached.next_try);
                } else {
                    self.evict_victims(valid);
                }
            }
        }
    }

    /// True if victims exceed their deadline.
    fn is_overdue(&self, valid: &ValidIntent) -> bool {
        let context = &self.context;
        let deadline = context.settings.intent_deadline;
        let waits = valid.present().next().is_some();
        waits && context.due(valid.since(context), deadline)
    }

    /// True if no pod has been bound for the deadline of an intent. Capacity can be missing for
    /// seconds.
    fn is_stuck(&self, gang: &GangState) -> bool {
        let binding = gang.status.preemption.as_ref().and_then(|p| p.binding);
        let deadline = self.context.settings.intent_deadline;
        binding.is_some_and(|binding| self.context.due(binding.since, deadline))
    }

    /// Set if the eviction limit does not permit the first evictions now.
    fn reached_limit(&self, valid: &ValidIntent) -> Option<LimitReached> {
        if valid.intent.begun() {
            return None;
        }
        let Context { settings, now, .. } = self.context;
        let (limit, pods) = (settings.max_evictions_per_minute, pods_of(&valid.intent));
        match self.limits.reached {
            Some(first) => Some(LimitReached { pods, ..first }),
            None => self.limits.evictions.allow(pods, limit, now).err(),
        }
    }

    /// The gang in free capacity, if it fits there without victims, and the remaining capacity.
    fn in_free_capacity(&self, at: usize) -> Option<(Capacity, GangState)> {
        let (context, gang) = (&self.context, &self.gangs[at]);
        let mut left = self.capacity.clone();
        let mut moved = gang.clone();
        left.vacate(context, &mut moved);
        if !place_in_free(context, self.memory, &mut left, &mut moved) {
            return None;
        }
        // In a basic group, some members may fit while the rest needs victims.
        if moved.assigned_members().count() < gang.assigned_members().count() {
            return None;
        }
        moved.status_mut().preemption = None;
        Some((left, moved))
    }

    /// The gang counts on nodes that victims of another intent leave. Until its first eviction, that
    /// intent may move, and then its victims stay.
    fn awaits_evictions(&self, valid: &ValidIntent) -> IntentStep {
        if self.is_overdue(valid) {
            IntentStep::DoesNotFit
        } else {
            IntentStep::Waits
        }
    }

    /// Victims of this intent, and victims of other intents whose eviction is recorded.
    fn own_and_evicted(&self, valid: &ValidIntent) -> BTreeSet<String> {
        let victims = self.gangs.iter().enumerate().flat_map(|(at, gang)| {
            let own = at == valid.at;
            let recorded = gang.input.group.status.preemption.as_ref();
            let intent = recorded.filter(|_| gang.status.preemption.is_some());
            let victims = intent.into_iter().flat_map(|intent| &intent.victims);
            victims.filter(move |v| own || v.eviction_requested_at.is_some())
        });
        let uids = victims.map(|v| v.uid.as_str());
        let present = uids.filter_map(|uid| self.capacity.evicting.get(uid).cloned());
        present.collect()
    }

    /// Free capacity on the nodes of these members after all terminations, as visible to the gang
    /// here. Unlimited in resources that no member on the node requests: the node may be
    /// overcommitted there. `evicting`: victims that count as terminating.
    fn free_after_terminations(
        &self,
        at: usize,
        members: &Assignments,
        evicting: &BTreeSet<String>,
    ) -> BTreeMap<NodeIx, Amounts> {
        let (context, input) = (&self.context, &self.gangs[at].input);
        let free = self.capacity.visible_to(context, self.gangs[at].priority());
        let mut after: BTreeMap<NodeIx, Amounts> = BTreeMap::new();
        for (member, node) in members {
            let Some(node) = context.cluster.ordinal(node.as_str()) else {
                continue;
            };
            let free = free.free(node);
            let after = after
                .entry(node)
                .or_insert_with(|| free.iter().map(|_| UNLIMITED).collect());
            let requests = input
                .requests(&member.group)
                .map(|r| context.amounts(r))
                .into_iter()
                .flatten();
            for (dim, _) in requests.enumerate().filter(|(_, amount)| *amount > 0) {
                after[dim] = free[dim];
            }
        }
        let mut occupancy = occupancy(context, &self.capacity, &self.gangs);
        occupancy.evicting = evicting;
        let leaving = occupancy.leaving();
        if let Some(until) = leaving.until {
            context.wake.at(until);
        }
        for (node, amounts) in leaving.held {
            hold(&mut after, &[(node, amounts)], -1);
        }
        after
    }

    /// Withdraws an intent and releases its nodes.
    fn withdraw(&mut self, at: usize) {
        let gang = &mut self.gangs[at];
        if let Some(intent) = gang.status_mut().preemption.take() {
            forget_open_preemption(gang, intent.decided_at);
        }
        self.capacity.vacate(&self.context, gang);
    }
}

fn fits(after: &BTreeMap<NodeIx, Amounts>) -> bool {
    after.values().flatten().all(|&free| free >= 0)
}

/// The intent without spared victims, for the next cycle.
fn reduced(mut intent: Preemption, victims: Vec<Victim>, now: DateTime<Utc>) -> Preemption {
    let waited = intent.checkpoint_wait();
    intent.cost = victims.iter().map(|v| v.cost).fold(0, i64::saturating_add);
    intent.lost_work = lost_work(&victims);
    intent.explanation = messages::reduced(&victims, intent.cost);
    // The proof was for another set of victims.
    (intent.proven, intent.at_least, intent.next_best) = (false, 0, None);
    intent.victims = victims;
    // The preemptor waits once. The other victims were not worth a request.
    if waited.is_some() && intent.checkpoint_wait().is_none() {
        let first = intent.victims.first_mut();
        if let Some(first) = first {
            first.checkpoint_deadline = Some(now);
        }
    }
    intent.id = intent_id(&intent);
    intent
}

/// Nominations for pods without a nomination.
fn nominations(pods: &[(Arc<Pod>, NodeName)]) -> impl Iterator<Item = Step> {
    let missing = pods
        .iter()
        .filter(|(pod, node)| pod.nominated.as_ref() != Some(node));
    missing.map(|(pod, node)| Step::Nominate {
        pod: PodRef::of(pod),
        node: node.clone(),
    })
}

/// True if the intent is unchanged and belongs to the gang's current placement.
fn genuine(gang: &GangState, intent: &Preemption) -> bool {
    is_own(&gang.input.group, intent) && gang.unmoved()
}

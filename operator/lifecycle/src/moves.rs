//! Nodes with signals that a gang is to leave: when a move is due, and which members it moves.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::gangs::Gang;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::workload::{
    CauseKind, CheckpointOccasion, CheckpointOutcome, FailureAction, FailureRule, GangMove,
    TrainingProgress,
};
use lockstep_api::{NodeSignal, Outlook, SignalLevel};

use crate::facts::Facts;
use crate::failure::policy::move_rule;
use crate::ledger::{DomainLedger, Ledger};
use crate::nodes::NodeInfo;
use crate::wake::Wake;

/// Signals are collected for this time, so that nodes that are announced together are left together.
const COLLECT: TimeDelta = TimeDelta::seconds(10);
/// Time for the stop and for delays, between the end of the save and the deadline.
const RESERVE: TimeDelta = TimeDelta::minutes(2);

/// A node with a signal on which members of a gang are placed.
pub(crate) struct Departure<'f> {
    pub node: &'f str,
    pub info: &'f NodeInfo,
    /// The most severe signal for which the gang does not stay; of announcements, the first that
    /// makes the move due.
    pub signal: &'f NodeSignal,
    /// The earliest deadline of its signals.
    pub deadline: Option<DateTime<Utc>>,
    /// Time at which the move is due, as far as known.
    pub due: DateTime<Utc>,
    /// True if a regular checkpoint makes the move due earlier.
    pub awaits_checkpoint: bool,
    /// Action of the failure policy.
    pub action: FailureAction,
    pub rule: Option<&'f FailureRule>,
}

impl Departure<'_> {
    pub fn kind(&self) -> CauseKind {
        kind_of(self.signal.level)
    }

    /// True in mode Act.
    pub fn acts(&self) -> bool {
        self.info.state.outlook != Outlook::Healthy
    }

    pub fn stays(&self) -> bool {
        self.action.leaves_container()
    }

    /// True if the gang has moved for the signal, or has stayed.
    pub fn is_settled(&self, moving: Option<&GangMove>) -> bool {
        moving.is_some_and(|m| m.is_settled(self.node, &self.signal.name))
    }

    /// True if any restart leaves the node.
    pub fn is_near(&self, facts: &Facts<'_>) -> bool {
        let near = facts.now + facts.view.settings().move_horizon;
        self.signal.level == SignalLevel::Faulty || self.deadline.is_none_or(|at| at <= near)
    }
}

/// True if gangs leave the node.
pub(crate) fn is_left(info: &NodeInfo) -> bool {
    match info.state.outlook {
        Outlook::Leaving { .. } | Outlook::Faulty => true,
        Outlook::Healthy | Outlook::Suspect => false,
    }
}

/// True if the node still has the signal, counted or held.
pub(crate) fn stands(facts: &Facts<'_>, node: &str, signal: &str) -> bool {
    let info = facts.view.nodes().get(node);
    let mut signals = info.into_iter().flat_map(|n| &n.signals);
    signals.any(|s| s.name == signal && s.deadline.is_none_or(|at| at > facts.now))
}

/// Signals because of which gangs leave a node.
pub(crate) fn severe(info: &NodeInfo, now: DateTime<Utc>) -> impl Iterator<Item = &NodeSignal> {
    counting(info, SignalLevel::Leaving, now)
}

/// Signals of at least this level.
fn counting(
    info: &NodeInfo,
    least: SignalLevel,
    now: DateTime<Utc>,
) -> impl Iterator<Item = &NodeSignal> {
    let signals = info.signals.iter();
    signals.filter(move |s| s.level >= least && s.counts(now))
}

/// The nodes with signals on which unfinished members of a placed gang are, by name.
pub(crate) fn departures<'f>(
    facts: &'f Facts<'_>,
    ledger: &Ledger,
    gang: &'f Gang,
    wake: &mut Wake,
) -> Vec<Departure<'f>> {
    if !may_leave(facts, ledger, gang) {
        return Vec::new();
    }
    let nodes = facts.nodes_with_signals.values();
    for signal in nodes.flat_map(|info| &info.signals) {
        if facts.due(signal.counts_from).passed(wake) {
            let ends = signal.deadline.map(|at| facts.due(at));
            let _over = ends.is_some_and(|end| end.passed(wake));
        }
    }
    departures_from(facts, ledger, gang, SignalLevel::Leaving)
}

fn may_leave(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang) -> bool {
    !gang.basic && facts.placement(ledger, &gang.key).is_some()
}

/// The nodes with signals of at least this level on which unfinished members of a placed gang are.
pub(crate) fn departures_from<'f>(
    facts: &'f Facts<'_>,
    ledger: &Ledger,
    gang: &'f Gang,
    least: SignalLevel,
) -> Vec<Departure<'f>> {
    let signals = &facts.nodes_with_signals;
    if signals.is_empty() || !may_leave(facts, ledger, gang) {
        return Vec::new();
    }
    let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (member, node) in unfinished(facts, ledger, gang) {
        if signals.contains_key(node) {
            groups.entry(node).or_default().insert(&member.group);
        }
    }
    if groups.is_empty() {
        return Vec::new();
    }
    let timing = Timing::new(facts, ledger, gang);
    let moving = ledger.gang(&gang.key).and_then(|e| e.moving.as_ref());
    let departures = groups.into_iter().filter_map(|(node, groups)| {
        let info = *signals.get(node)?;
        let each = counting(info, least, facts.now).map(|signal| {
            let (due, awaits_checkpoint) = timing.due(signal);
            let (action, rule) = action_of(facts, signal.level, &groups);
            Departure {
                node,
                info,
                signal,
                deadline: severe(info, facts.now).filter_map(|s| s.deadline).min(),
                due: due.max(signal.counts_from + COLLECT),
                awaits_checkpoint,
                action,
                rule,
            }
        });
        // A signal for which the gang stays hides no other.
        each.min_by_key(|d| {
            let stays = d.stays() || d.is_settled(moving) || !d.is_near(facts);
            (stays, Reverse(d.signal.level), d.due, &d.signal.name)
        })
    });
    departures.collect()
}

/// The most severe action of the failure policy for members of these groups, and its rule.
fn action_of<'f>(
    facts: &'f Facts<'_>,
    level: SignalLevel,
    groups: &BTreeSet<&str>,
) -> (FailureAction, Option<&'f FailureRule>) {
    let of_group = |group: &&str| {
        let rule = move_rule(facts.spec(), kind_of(level), group);
        (rule.map_or(FailureAction::RestartGang, |r| r.action), rule)
    };
    let each = groups.iter().map(of_group);
    let most = each.max_by_key(|(action, _)| action.severity());
    most.unwrap_or((FailureAction::RestartGang, None))
}

fn kind_of(level: SignalLevel) -> CauseKind {
    match level {
        SignalLevel::Faulty => CauseKind::NodeFaulty,
        SignalLevel::Suspect | SignalLevel::Leaving => CauseKind::NodeLeaving,
    }
}

/// Unfinished members that run, with the nodes of their placement.
fn unfinished<'f>(
    facts: &'f Facts<'_>,
    ledger: &Ledger,
    gang: &'f Gang,
) -> Vec<(&'f Member, &'f str)> {
    let membership = ledger.membership(facts.spec());
    let assigned = facts.assigned_nodes(&gang.key);
    let members = gang.members();
    let unfinished = members.filter(|m| membership.contains(m) && !ledger.completed.contains(*m));
    unfinished
        .filter_map(|m| Some((m, assigned.get(m)?.as_str())))
        .collect()
}

/// The members that are placed on the nodes of a move.
pub(crate) fn members_to_move(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    moving: &GangMove,
) -> BTreeSet<Member> {
    let left = |node: &str| moving.nodes.iter().any(|n| n.node == node);
    let placed = unfinished(facts, ledger, gang).into_iter();
    placed
        .filter(|(_, node)| left(node))
        .map(|(m, _)| m.clone())
        .collect()
}

/// The members that get new pods in the move, if the scheduler permits it. `None` for a target of
/// fewer nodes, from before another signal joined the move.
pub(crate) fn permitted(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    moving: &GangMove,
) -> Option<BTreeSet<Member>> {
    let target = facts.gang_view(&gang.key)?.move_target.as_ref();
    let target = target.filter(|t| t.permits(&moving.id))?;
    let leaving = members_to_move(facts, ledger, gang, moving);
    if target.preempts {
        return Some(leaving);
    }
    let lists = target.nodes.iter().map(|n| MemberSet::parse(&n.members));
    let sets: Vec<MemberSet> = lists.filter_map(Result::ok).collect();
    let moved: BTreeSet<Member> = sets.iter().flat_map(MemberSet::iter).cloned().collect();
    moved.is_superset(&leaving).then_some(moved)
}

pub(crate) fn occasion(moving: &GangMove) -> CheckpointOccasion {
    if moving.reason == CauseKind::NodeFaulty {
        CheckpointOccasion::NodeFaulty
    } else {
        CheckpointOccasion::NodeLeaving
    }
}

/// When a move is due.
struct Timing<'f> {
    /// True if a checkpoint can be requested before the move.
    asks: bool,
    lead: TimeDelta,
    /// The lead, or the time for a save if that is longer.
    lead_with_save: TimeDelta,
    saved: Option<DateTime<Utc>>,
    interval: Option<TimeDelta>,
    facts: &'f Facts<'f>,
}

/// Time of a save and of the stop after it.
pub(crate) fn time_to_leave(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang) -> TimeDelta {
    let entries = gang.domains.iter().filter_map(|d| ledger.domain(&d.key));
    let learned = entries.filter_map(learned_save).max();
    // Until a save was observed, the longest wait for one.
    let timeout = facts.checkpoint_policy().map(|p| p.timeout_seconds);
    let asks = facts.asks_before(CheckpointOccasion::NodeLeaving);
    let longest = timeout.filter(|_| asks).map(TimeDelta::seconds);
    learned.or(longest).unwrap_or_default() + RESERVE
}

/// Duration of the last request, if it was answered by a saved step.
fn learned_save(entry: &DomainLedger) -> Option<TimeDelta> {
    let request = entry.request.as_ref()?;
    let saved = request.outcome == Some(CheckpointOutcome::Saved);
    request
        .millis
        .filter(|_| saved)
        .map(TimeDelta::milliseconds)
}

impl<'f> Timing<'f> {
    fn new(facts: &'f Facts<'_>, ledger: &Ledger, gang: &Gang) -> Self {
        let lead = facts.view.settings().lead_time;
        let progress = ledger.progress.as_ref();
        Self {
            asks: facts.asks_before(CheckpointOccasion::NodeLeaving),
            lead,
            lead_with_save: lead.max(time_to_leave(facts, ledger, gang)),
            saved: ledger.last_saved(facts),
            interval: progress.and_then(TrainingProgress::usual_checkpoint_interval),
            facts,
        }
    }

    /// The time, and whether a regular checkpoint before it makes the move due.
    fn due(&self, signal: &NodeSignal) -> (DateTime<Utc>, bool) {
        if signal.level == SignalLevel::Faulty {
            return (signal.counts_from, false);
        }
        let (due, since) = match signal.deadline {
            Some(deadline) => {
                let due = deadline - self.lead_with_save;
                (due, self.interval.map(|interval| due - interval))
            }
            None if self.asks => return (signal.counts_from, false),
            None => (signal.counts_from + self.lead, Some(signal.counts_from)),
        };
        match since.filter(|_| !self.asks) {
            Some(since) => match self.saved.filter(|at| *at > since) {
                Some(saved) => (saved.min(due), false),
                None => (due, due > self.facts.now),
            },
            None => (due, false),
        }
    }
}

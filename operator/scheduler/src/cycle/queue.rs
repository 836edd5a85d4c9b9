//! The queue: places gangs in order, and records why other gangs wait.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::member::Member;
use lockstep_api::scheduling::Reservation;

use super::order::{Queueing, order, reorder, requests_of};
use super::outcome::Outcome;
use super::state::Cycle;
use crate::capacity::namespace_usage::{NamespaceUsage, has_pod};
use crate::capacity::occupancy::requested_amounts;
use crate::context::Context;
use crate::gang::pending::{ManyFaults, Pending};
use crate::gang::state::GangState;
use crate::input::hold::{GangPhase, Hold};
use crate::memory::equivalence_class::Request;
use crate::memory::inadmissible::InadmissibleGangs;
use crate::plan::QueuePlace;

impl Cycle<'_> {
    /// Serves the queue: places gangs that fit, preempts for gangs that may, and records why the
    /// remaining gangs wait. Returns the queue in the served order.
    ///
    /// A victim search without result is repeated only after a relevant change. If the cycle has no
    /// search left, the remaining gangs come first in the next cycle.
    pub(super) fn serve_queue(&mut self, faults: Option<ManyFaults>) -> Vec<QueuePlace> {
        let context = self.context;
        note_queue_time(&context, &mut self.gangs);
        // Lost nodes are already removed.
        for gang in &mut self.gangs {
            gang.choose_members_to_place(&context);
        }
        if !(self.gangs.iter()).any(|gang| requests_of(gang).next().is_some()) {
            collect(&mut self.gangs);
            self.memory.inadmissible = InadmissibleGangs::default();
            return Vec::new();
        }
        self.expire_verdicts();
        let Context {
            cluster,
            weights,
            quotas,
            ..
        } = context;
        let mut usage = NamespaceUsage::new(cluster, weights, quotas, &self.gangs);
        let mut queue = order(&self.gangs, &usage, |at| {
            self.queue.previous.contains_key(&at)
        });
        let mut places = Vec::with_capacity(queue.len());
        while let Some(Queueing { at, request, .. }) = queue.pop() {
            if matches!(request, Request::Move { .. }) {
                self.serve_move(at, faults);
                continue;
            }
            places.push(QueuePlace {
                gang: at,
                grows: request == Request::Growth,
            });
            let gang = &mut self.gangs[at];
            if gang.kube_scheduler_places(&context) {
                let members = gang.unfinished().count();
                let waits = Pending::KubeSchedulerPlaces { members };
                gang.pending = Some(waits).filter(|_| request == Request::Required);
                continue;
            }
            keep_to_volumes(gang);
            if let Some(hold) = hold_of(gang, request, &usage) {
                gang.pending = Some(Pending::Held(hold));
                continue;
            }
            if request == Request::Required {
                keep_to_quota(gang, &usage);
            }
            let assigned = gang.assigned.clone();
            self.serve(at, request);
            let gang = &self.gangs[at];
            if !gang.holds_as(assigned.as_ref()) {
                usage.admit(gang, assigned.as_deref());
                reorder(&mut queue, &self.gangs, &usage, &gang.input.key.namespace);
            }
        }
        let cache = &mut self.memory.inadmissible;
        let unsearched = !self.queue.unsearched.is_empty();
        if unsearched || cache.outdated() {
            context.wake.at(context.now);
        }
        for until in cache.ends() {
            context.wake.at(until);
        }
        cache.finish(unsearched);
        places
    }

    fn serve(&mut self, at: usize, request: Request) {
        let mut outcome = self.evaluate(at, request);
        while matches!(outcome, Outcome::RetriesExcludedNodes) {
            self.apply(at, outcome);
            outcome = self.evaluate(at, request);
        }
        self.apply(at, outcome);
    }

    /// After a relevant change, drops verdicts of earlier cycles and takes the reservations of
    /// these cycles from the statuses. Gangs that still wait get them again.
    fn expire_verdicts(&mut self) {
        let requested = requested_amounts(&self.context, &self.capacity, &self.gangs);
        let cache = &mut self.memory.inadmissible;
        cache.note_input(&self.context, &requested, &self.gangs);
        // The cached searches include the reservations.
        self.queue.previous = collect(&mut self.gangs);
        if !cache.unfinished {
            cache.expire(self.context.now);
        }
    }
}

/// Takes the reservations from the statuses, by index of the gang.
fn collect(gangs: &mut [GangState]) -> BTreeMap<usize, Reservation> {
    let each = gangs.iter_mut().enumerate();
    let holding = each.filter(|(_, gang)| gang.status.reservation.is_some());
    holding
        .filter_map(|(at, gang)| Some((at, gang.status_mut().reservation.take()?)))
        .collect()
}

/// Records when a gang first requested capacity since it last held some.
fn note_queue_time(context: &Context<'_>, gangs: &mut [GangState]) {
    for gang in gangs {
        let requests = gang.phase() == &GangPhase::Active && gang.assigned.is_none();
        if requests && gang.status.queued_at.is_none() {
            gang.status_mut().queued_at = Some(context.now);
        }
    }
}

/// Leaves out members with missing volumes if enough members remain: one of a basic gang,
/// `minCount` of an elastic gang.
fn keep_to_volumes(gang: &mut GangState) {
    if gang.missing_volume().is_none() {
        return;
    }
    let templates = gang.input.workload.templates.iter();
    let lacking: BTreeSet<&str> = templates
        .filter(|t| !t.storage.missing.is_empty())
        .map(|t| t.group.as_str())
        .collect();
    let ready: BTreeSet<Member> = gang
        .members_to_place()
        .filter(|m| !lacking.contains(&*m.group))
        .cloned()
        .collect();
    let placed = gang.assigned.as_ref();
    let mut new = ready.iter();
    // If all ready members have nodes, the gang reports the missing volumes.
    let lacks_nodes = new.any(|m| placed.is_none_or(|placed| !placed.contains_key(m)));
    let enough = gang.input.gang.basic || ready.len() >= gang.min_count() as usize;
    if lacks_nodes && enough {
        gang.to_place = Some(ready);
    }
}

/// Limits an elastic gang to the members that the quota permits, because one refused pod fails the
/// whole placement. Groups that use more quota get fewer members.
fn keep_to_quota(gang: &mut GangState, usage: &NamespaceUsage<'_>) {
    if let Some(kept) = allowed_by_quota(gang, usage) {
        gang.to_place = Some(kept);
    }
}

/// Members that the quota permits. `None`: all wanted members, or too few.
fn allowed_by_quota(gang: &GangState, usage: &NamespaceUsage<'_>) -> Option<BTreeSet<Member>> {
    let least = gang.min_count() as usize;
    if gang.members_to_place().count() <= least || !usage.has_quota(&gang.input.key.namespace) {
        return None;
    }
    let (counted, new) = counted_and_new(gang);
    if are_allowed(gang, usage, &new) {
        return None;
    }
    let mut by_group: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    for &member in &new {
        by_group.entry(&member.group).or_default().push(member);
    }
    let mut groups: Vec<Vec<&Member>> = by_group.into_values().collect();
    groups.sort_by_cached_key(|group| Reverse(most_allowed(gang, usage, &[], group)));
    let mut taken: Vec<&Member> = Vec::new();
    for group in &groups {
        let count = most_allowed(gang, usage, &taken, group);
        taken.extend(&group[..count]);
    }
    let enough = counted.len() + taken.len() >= least;
    enough.then(|| counted.into_iter().chain(taken).cloned().collect())
}

/// True if the quota permits all of these uncounted members.
fn are_allowed(gang: &GangState, usage: &NamespaceUsage<'_>, members: &[&Member]) -> bool {
    let members: BTreeSet<&Member> = members.iter().copied().collect();
    usage.excess(gang, &members, members.len()).is_none()
}

/// How many members of a group the quota permits in addition to `taken`.
fn most_allowed(
    gang: &GangState,
    usage: &NamespaceUsage<'_>,
    taken: &[&Member],
    group: &[&Member],
) -> usize {
    let with = |count: &usize| are_allowed(gang, usage, &[taken, &group[..*count]].concat());
    let counts: Vec<usize> = (1..=group.len()).collect();
    counts.partition_point(with)
}

/// Wanted members: already counted by quotas, and new.
fn counted_and_new(gang: &GangState) -> (Vec<&Member>, Vec<&Member>) {
    let assigned = gang.assigned.as_ref();
    let counted = |m: &&Member| assigned.is_some_and(|a| a.contains_key(*m)) || has_pod(gang, m);
    gang.members_to_place().partition(counted)
}

/// Reason to hold a gang: neither free capacity nor preemption helps.
fn hold_of(gang: &GangState, request: Request, usage: &NamespaceUsage<'_>) -> Option<Hold> {
    if let Some(missing) = gang.missing_volume() {
        return Some(Hold::Volume(missing.clone()));
    }
    if !usage.has_quota(&gang.input.key.namespace) {
        return None;
    }
    let (counted, new) = counted_and_new(gang);
    let count = match request {
        // One refused pod would fail the whole placement.
        Request::Growth | Request::Move { .. } => new.len(),
        Request::Required if gang.input.gang.basic => 1.min(new.len()),
        Request::Required => (gang.min_count() as usize)
            .saturating_sub(counted.len())
            .min(new.len()),
    };
    let new = new.into_iter().collect();
    usage.excess(gang, &new, count).map(Hold::Quota)
}

//! The outcome of a turn, and its effect on the cycle.

use chrono::{DateTime, Utc};
use lockstep_api::scheduling::{Backfill, Preemption, Reservation};

use super::place::by_name;
use super::state::{Cycle, uids};
use crate::capacity::reservations::{amounts, held};
use crate::gang::decision::{Decision, MemberNodes, PreemptionDecision};
use crate::gang::pending::{NoPreemption, Pending};
use crate::memory::equivalence_class::EquivalenceClass;
use crate::memory::no_victims::SearchKey;
use crate::size::TooLarge;

pub(super) enum Outcome {
    /// Waits for another reason than capacity, or for that of a gang with equal requests.
    NotEvaluated(Pending),
    /// Waits for the same reason as in an earlier cycle, and keeps its reservation.
    Reused {
        pending: Pending,
        class: Option<EquivalenceClass>,
        /// False if the verdict is from a cycle without a victim search for the gang.
        searched: bool,
    },
    Placed {
        nodes: MemberNodes,
        /// Set if the gang takes capacity that is reserved for later.
        backfill: Option<Backfill>,
    },
    Preempts(Box<DecidedPreemption>),
    Waits(Box<Waiting>),
    /// The placement exceeds the size of one object.
    TooLarge(TooLarge),
    /// The optional members of an elastic gang do not fit.
    KeepsSize,
    /// The gang does not fit, so its excluded nodes are permitted again for another turn.
    RetriesExcludedNodes,
}

/// A preemption, as recorded in the status of the preemptor and as reported.
pub(super) struct DecidedPreemption {
    pub intent: Preemption,
    pub decision: PreemptionDecision,
}

pub(super) struct Waiting {
    /// Why the gang gets no capacity from preemption.
    pub pending: Pending,
    pub search: VictimSearch,
    /// Nodes that terminating pods free for the gang.
    pub after_terminations: Option<MemberNodes>,
    /// Set if the gang would fit without the reservations of other gangs.
    pub reserved: Option<Pending>,
    pub reservation: Option<Reservation>,
    /// True if the gang has no history: its verdict can be reused.
    pub plain: bool,
    /// Requests for the shared verdict. `None` if the gang has a history or a reservation.
    pub class: Option<EquivalenceClass>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VictimSearch {
    /// The gang may not preempt, or need not.
    NotDue,
    /// The result of the last search is valid.
    Cached,
    /// The searches of the cycle are used up.
    OverBudget,
    /// Found no victims. The result is valid until this time.
    NoResult(Option<DateTime<Utc>>),
}

impl Outcome {
    fn is_evaluated(&self) -> bool {
        !matches!(self, Self::NotEvaluated(_) | Self::Reused { .. })
    }
}

impl Cycle<'_> {
    /// Writes the outcome of a turn. The only writer while the queue is served, so it drops
    /// everything that depends on changed capacity.
    pub(super) fn apply(&mut self, at: usize, outcome: Outcome) {
        let leaving = self.queue.leaving.get();
        if let Some(until) = leaving.and_then(|leaving| leaving.until) {
            self.wake.at(until);
        }
        if outcome.is_evaluated() {
            self.note_evaluation(at);
        }
        let gang = &mut self.gangs[at];
        match outcome {
            Outcome::NotEvaluated(pending) => {
                gang.pending = Some(pending.clone());
                self.wake_for(&pending);
            }
            Outcome::Reused {
                pending,
                class,
                searched,
            } => {
                if searched {
                    let key = SearchKey::of(class.as_ref(), gang.uid());
                    self.memory.no_victims.mark_used(key);
                } else {
                    self.queue.unsearched = true;
                }
                gang.pending = Some(pending);
                if let Some(kept) = self.queue.previous.get(&at).cloned() {
                    self.reserve(at, kept);
                }
            }
            Outcome::KeepsSize => {}
            Outcome::RetriesExcludedNodes => gang.status.excluded_nodes.clear(),
            Outcome::TooLarge(too_large) => gang.pending = Some(Pending::TooLarge(too_large)),
            Outcome::Placed { nodes, backfill } => self.place(at, nodes, backfill),
            Outcome::Preempts(preemption) => self.preempt(at, *preemption),
            Outcome::Waits(waiting) => self.wait(at, *waiting),
        }
    }

    /// Counts a gang that was evaluated by itself, and its longer placement search.
    fn note_evaluation(&mut self, at: usize) {
        self.queue.evaluated += 1;
        if self.search_effort(at) > 1 {
            self.queue.extended_searches += 1;
            let (uid, now) = (self.gangs[at].uid(), self.context.now);
            self.memory.unknown.note_extended(uid, now);
        }
    }

    fn place(&mut self, at: usize, nodes: MemberNodes, backfill: Option<Backfill>) {
        let (context, gang) = (&self.context, &mut self.gangs[at]);
        gang.promise(backfill);
        let named = by_name(context, &nodes);
        self.capacity.assign(context, gang, named);
        gang.decision = Decision::Placed(nodes);
        self.memory.unknown.settle(gang.uid());
        self.queue.capacity_changed();
    }

    fn preempt(&mut self, at: usize, preemption: DecidedPreemption) {
        let DecidedPreemption { intent, decision } = preemption;
        let (context, gang) = (&self.context, &mut self.gangs[at]);
        let nodes = by_name(context, &decision.nodes);
        self.capacity.assign(context, gang, nodes);
        let victims = intent.victims.iter().map(|v| v.uid.clone());
        self.capacity.evicting.extend(victims);
        gang.status.preemption = Some(intent);
        gang.decision = Decision::Preempts(Box::new(decision));
        self.queue.searches += 1;
        self.queue.capacity_changed();
        self.queue.leaving.take();
    }

    fn wait(&mut self, at: usize, waiting: Waiting) {
        let Waiting {
            pending,
            search,
            after_terminations,
            reserved,
            reservation,
            plain,
            class,
        } = waiting;
        let (cache, gang) = (&mut self.memory.no_victims, &mut self.gangs[at]);
        if let Some(nodes) = after_terminations {
            gang.decision = Decision::AfterTerminations(nodes);
        }
        let key = SearchKey::of(class.as_ref(), gang.uid());
        let unknown = matches!(pending, Pending::Unknown { .. });
        match search {
            VictimSearch::NotDue => {}
            VictimSearch::Cached => cache.mark_used(key),
            VictimSearch::OverBudget => self.queue.unsearched = true,
            VictimSearch::NoResult(until) => {
                self.queue.searches += 1;
                let key = if unknown {
                    SearchKey::Gang(gang.uid())
                } else {
                    key
                };
                cache.remember(key, until, pending.clone());
            }
        }
        if search != VictimSearch::Cached {
            if unknown {
                self.memory.unknown.failed(gang.uid(), self.context.now);
            }
            self.wake_for(&pending);
        }
        if let Pending::NoPreemption {
            why: NoPreemption::Paced(reached),
            ..
        } = &pending
        {
            self.limits.reached.get_or_insert(*reached);
        }
        let pending = reserved.unwrap_or(pending);
        self.queue.changed |= self.queue.previous.get(&at) != reservation.as_ref();
        if plain && !self.queue.changed {
            let key = SearchKey::of(class.as_ref(), self.gangs[at].uid());
            let ahead = uids(&self.gangs, &self.queue.ahead);
            let cache = &mut self.memory.no_victims;
            if search == VictimSearch::OverBudget {
                cache.record_unsearched(key, ahead, &pending);
            } else {
                cache.record_verdict(key, ahead, &pending);
            }
        }
        if let Some(reservation) = reservation {
            self.reserve(at, reservation);
        } else if let Some(class) = class {
            // If this gang got no search, no gang of its class gets one.
            self.queue.classes.waits(class, &pending);
        }
        self.gangs[at].pending = Some(pending);
    }

    /// Records the reservation of a waiting gang.
    fn reserve(&mut self, at: usize, reservation: Reservation) {
        let (context, gang) = (&self.context, &mut self.gangs[at]);
        let nodes = amounts(context, gang, &reservation);
        let held = held(context, gang, at, reservation.starts_at, nodes);
        self.queue.ahead.push(held);
        gang.status.reservation = Some(reservation);
    }

    /// Wakes the scheduler when the reason may end by itself.
    fn wake_for(&mut self, pending: &Pending) {
        if let Pending::BackingOff { next_try, .. }
        | Pending::RejectingNodes { next_try, .. }
        | Pending::Unknown { next_try, .. } = pending
        {
            self.wake.at(*next_try);
        }
    }
}

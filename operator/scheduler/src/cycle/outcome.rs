//! The outcome of a turn, and its effect on the cycle.

use std::hash::{DefaultHasher, Hash, Hasher};

use chrono::{DateTime, Utc};
use lockstep_api::gangs::Assignments;
use lockstep_api::scheduling::{Backfill, Preemption, Reservation};

use super::state::Cycle;
use crate::capacity::reservations::held;
use crate::gang::decision::{Decision, PreemptionDecision};
use crate::gang::pending::{NoPreemption, Pending};
use crate::memory::equivalence_class::EquivalenceClass;
use crate::memory::inadmissible::Wait;
use crate::size::TooLarge;

pub(super) enum Outcome {
    /// Waits for another reason than capacity.
    NotEvaluated(Pending),
    /// Waits for the known reason of its class, and keeps its reservation.
    Reused(Wait),
    Placed {
        nodes: Assignments,
        /// Set if the gang takes capacity that is reserved for later.
        backfill: Option<Backfill>,
    },
    Preempts(Box<DecidedPreemption>),
    Waits(Box<Waiting>),
    /// The placement exceeds the size of one object.
    TooLarge(TooLarge),
    /// The members that a placed gang lacks do not fit.
    KeepsSize(Pending),
    /// The gang does not fit. Another turn permits its excluded nodes.
    RetriesExcludedNodes,
}

/// A preemption: as recorded in the preemptor's status, and as reported.
pub(super) struct DecidedPreemption {
    pub intent: Preemption,
    pub decision: PreemptionDecision,
}

pub(super) struct Waiting {
    pub no_capacity: NoCapacity,
    /// Set if the gang would fit without the reservations of other gangs.
    pub reserved: Option<Pending>,
    pub reservation: Option<Reservation>,
    /// Gangs with the same verdict.
    pub class: EquivalenceClass,
    /// True if only events can change the verdict.
    pub plain: bool,
}

/// Why a gang gets no capacity from terminations or preemption.
pub(super) struct NoCapacity {
    pub pending: Pending,
    pub search: VictimSearch,
    /// Nodes that terminating pods free for the gang.
    pub after_terminations: Option<Assignments>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VictimSearch {
    NotDue,
    Cached,
    /// The cycle has no search left.
    OverBudget,
    /// No victims. The result is valid until this time.
    NoResult(Option<DateTime<Utc>>),
}

impl NoCapacity {
    pub fn without_search(pending: Pending) -> Self {
        Self::new(pending, VictimSearch::NotDue)
    }

    pub fn new(pending: Pending, search: VictimSearch) -> Self {
        Self {
            pending,
            search,
            after_terminations: None,
        }
    }
}

impl Outcome {
    fn is_evaluated(&self) -> bool {
        !matches!(self, Self::NotEvaluated(_) | Self::Reused(_))
    }
}

impl Cycle<'_> {
    /// Writes the outcome of a turn. The only writer while the queue is served, so it drops
    /// everything that depends on changed capacity.
    pub(super) fn apply(&mut self, at: usize, outcome: Outcome) {
        let leaving = self.queue.leaving.get();
        if let Some(until) = leaving.and_then(|leaving| leaving.until) {
            self.context.wake.at(until);
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
            Outcome::Reused(wait) => {
                if !wait.searched {
                    self.queue.unsearched.insert(at);
                }
                gang.pending = Some(wait.pending.clone());
                self.wake_for(&wait.pending);
                if let Some(kept) = self.queue.previous.get(&at).cloned() {
                    self.reserve(at, kept);
                }
            }
            Outcome::KeepsSize(pending) => gang.pending = Some(pending),
            Outcome::RetriesExcludedNodes => gang.status_mut().excluded_nodes.clear(),
            Outcome::TooLarge(too_large) => gang.pending = Some(Pending::TooLarge(too_large)),
            Outcome::Placed { nodes, backfill } => self.place(at, nodes, backfill),
            Outcome::Preempts(preemption) => self.preempt(at, *preemption),
            Outcome::Waits(waiting) => self.wait(at, *waiting),
        }
    }

    /// Counts an evaluated gang, and its longer placement search.
    pub(super) fn note_evaluation(&mut self, at: usize) {
        self.queue.evaluated += 1;
        if self.search_effort(at) > 1 {
            self.queue.extended_searches += 1;
            let (uid, now) = (self.gangs[at].uid(), self.context.now);
            self.memory.undecided.note_extended(uid, now);
        }
    }

    fn place(&mut self, at: usize, nodes: Assignments, backfill: Option<Backfill>) {
        let (context, gang) = (&self.context, &mut self.gangs[at]);
        gang.promise(backfill);
        self.capacity.assign(context, gang, nodes.clone());
        gang.decision = Decision::Placed(nodes);
        self.memory.undecided.settle(gang.uid());
        self.capacity_changed();
    }

    fn preempt(&mut self, at: usize, preemption: DecidedPreemption) {
        let DecidedPreemption { intent, decision } = preemption;
        let (context, gang) = (&self.context, &mut self.gangs[at]);
        self.capacity.assign(context, gang, decision.nodes.clone());
        let victims = intent.victims.iter().map(|v| v.uid.clone());
        self.capacity.evicting.extend(victims);
        gang.status_mut().preemption = Some(intent);
        gang.decision = Decision::Preempts(Box::new(decision));
        self.memory.undecided.settle(gang.uid());
        self.queue.searches += 1;
        self.capacity_changed();
        self.queue.leaving.take();
    }

    fn wait(&mut self, at: usize, waiting: Waiting) {
        let Waiting {
            no_capacity,
            reserved,
            reservation,
            class,
            plain,
        } = waiting;
        let NoCapacity {
            pending,
            search,
            after_terminations,
        } = no_capacity;
        if let Some(nodes) = after_terminations {
            self.gangs[at].decision = Decision::AfterTerminations(nodes);
        }
        self.note_search(at, &class, search, &pending);
        if let Pending::NoPreemption { why, .. } = &pending
            && let NoPreemption::Paced(reached) = &**why
        {
            self.limits.reached.get_or_insert(*reached);
        }
        let searched = search != VictimSearch::OverBudget;
        let lasts = pending.lasts();
        let pending = reserved.unwrap_or(pending);
        if plain && self.queue.previous.get(&at) == reservation.as_ref() {
            let wait = Wait {
                ahead: self.queue.ahead_hash,
                pending: pending.clone(),
                searched,
                lasts,
            };
            self.memory.inadmissible.note_wait(class, wait);
        }
        if let Some(reservation) = reservation {
            self.reserve(at, reservation);
        }
        self.gangs[at].pending = Some(pending);
    }

    /// Notes a search for victims without result, for the next one.
    pub(super) fn note_search(
        &mut self,
        at: usize,
        class: &EquivalenceClass,
        search: VictimSearch,
        pending: &Pending,
    ) {
        let gang = &self.gangs[at];
        let undecided = matches!(pending, Pending::Undecided { .. });
        if let VictimSearch::NoResult(until) = search {
            self.queue.searches += 1;
            // A gang whose search ended early gets longer searches of its own.
            let searched = if undecided {
                class.clone().of_one(gang.uid())
            } else {
                class.clone()
            };
            let cache = &mut self.memory.inadmissible;
            cache.note_search(searched, until, pending.clone());
        }
        if search != VictimSearch::Cached {
            if undecided {
                self.memory.undecided.failed(gang.uid(), self.context.now);
            }
            self.wake_for(pending);
        }
        if search == VictimSearch::OverBudget {
            self.queue.unsearched.insert(at);
        }
    }

    fn reserve(&mut self, at: usize, reservation: Reservation) {
        let (context, gang) = (&self.context, &mut self.gangs[at]);
        let held = held(context, gang, at, &reservation);
        let mut hasher = DefaultHasher::new();
        let rules = (
            held.priority,
            held.preempts,
            &held.requested,
            held.starts_at,
        );
        (self.queue.ahead_hash, gang.uid(), rules, &held.nodes).hash(&mut hasher);
        self.queue.ahead_hash = hasher.finish();
        self.queue.ahead.push(held);
        gang.status_mut().reservation = Some(reservation);
    }

    /// Wakes the scheduler when the reason may end without a change.
    pub(super) fn wake_for(&self, pending: &Pending) {
        if let Pending::BackingOff { next_try, .. }
        | Pending::RejectingNodes { next_try, .. }
        | Pending::Undecided { next_try, .. } = pending
        {
            self.context.wake.at(*next_try);
        }
    }
}

//! State of one pass over the queue.

use std::collections::BTreeMap;

use lockstep_api::scheduling::Reservation;
use lockstep_engine::{Amounts, NodeIx};
use lockstep_model::{PassingWork, ReservationsAhead};

use super::classes::WaitingClasses;
use crate::context::Wake;
use crate::pace::LimitReached;
use crate::pending::{NoPreemption, Pending};

#[derive(Default)]
pub(super) struct Round {
    pub searches: usize,
    /// Gangs judged one by one, not by an equal request.
    pub judged: usize,
    pub classes: WaitingClasses,
    /// True if a gang got capacity, releases some, or changed its reservation. Cached verdicts are
    /// then invalid.
    pub disturbed: bool,
    /// Longer placement searches so far.
    pub longer: usize,
    /// Set if a preemption waits for the eviction limit. No other preemption may overtake it.
    pub paced: Option<LimitReached>,
    /// Gangs that got no search.
    pub left_out: usize,
    /// Terminating capacity. Computed on first use and after each preemption.
    pub leaving: Option<Vec<(NodeIx, Amounts)>>,
    /// Work that holds capacity temporarily. Computed on first use and after each placement.
    pub work: Option<Vec<PassingWork>>,
    /// Reservations of waiting gangs in queue order. Gangs behind them must not use this capacity.
    pub ahead: ReservationsAhead,
    /// Reservations of the last cycle, by index of the gang.
    pub before: BTreeMap<usize, Reservation>,
    pub wake: Wake,
}

impl Round {
    /// Records that a gang got capacity, or is to release some.
    pub fn disturb(&mut self) {
        self.disturbed = true;
        self.classes.forget();
    }

    pub fn note_paced(&mut self, pending: &Pending) {
        if let Pending::NoPreemption {
            why: NoPreemption::Paced(reached),
            ..
        } = pending
        {
            self.paced.get_or_insert(*reached);
        }
    }
}

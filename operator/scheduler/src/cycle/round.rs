//! What one way through the queue keeps.

use std::collections::BTreeMap;

use lockstep_api::scheduling::Reservation;
use lockstep_engine::{Amounts, NodeIx};
use lockstep_model::{PassingWork, ReservationsAhead};

use super::classes::WaitingClasses;
use crate::context::Wake;
use crate::pace::LimitReached;
use crate::pending::{NoPreemption, Pending};

/// What one way through the queue keeps.
#[derive(Default)]
pub(super) struct Round {
    /// Searches for victims that were made.
    pub searches: usize,
    /// Gangs that were looked at by themselves, and not as one of several that ask for the same.
    pub judged: usize,
    /// What is known of gangs that ask for the same.
    pub classes: WaitingClasses,
    /// Whether somebody has got capacity or reserved other nodes, or is to give up some: less is free then
    /// than what was read says, or something else is kept.
    pub disturbed: bool,
    /// Longer searches for gangs of which it is not known whether they fit.
    pub longer: usize,
    /// That a preemption waits for the limit of evictions: none overtakes it.
    pub paced: Option<LimitReached>,
    /// Gangs that were left without a search.
    pub left_out: usize,
    /// What is about to leave; looked up when it first matters, and again after each preemption.
    pub leaving: Option<Vec<(NodeIx, Amounts)>>,
    /// What holds capacity for a while only; looked up when it first matters, and again after each
    /// placement.
    pub work: Option<Vec<PassingWork>>,
    /// What is reserved for gangs that wait, in the order of the queue: those behind them leave it
    /// alone.
    pub ahead: ReservationsAhead,
    /// What the last cycle reserved, by the position of the gang.
    pub before: BTreeMap<usize, Reservation>,
    /// When to look again.
    pub wake: Wake,
}

impl Round {
    /// Somebody has got capacity, or is to give it up.
    pub fn disturb(&mut self) {
        self.disturbed = true;
        self.classes.forget();
    }

    /// Takes note of a gang that waits for the limit of evictions, if it does.
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

//! What one way through the queue keeps.

use lockstep_engine::{Amounts, NodeIx};
use lockstep_model::EarlierReservations;

use crate::context::Wake;

/// What one way through the queue keeps.
#[derive(Default)]
pub(super) struct Round {
    /// Searches for victims that were made.
    pub searches: usize,
    /// Whether a gang was left without one.
    pub unfinished: bool,
    /// What is about to leave; looked up when it first matters, and again after each preemption.
    pub leaving: Option<Vec<(NodeIx, Amounts)>>,
    /// Gangs that wait: those behind them leave alone what only they could use.
    pub earlier: EarlierReservations,
    /// When to look again.
    pub wake: Wake,
}

//! Steps that the search for a placement of several shapes may spend.

use std::cell::Cell;

/// Steps that [`place`](crate::place) may spend. A preemption brings its own.
pub const PLACEMENT_STEPS: u64 = 1_000_000;

/// Steps of all placements of one decision, counted and not timed, so that equal questions have
/// equal answers. One step is one look at what a node could hold.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    left: Cell<u64>,
    spent: Cell<u64>,
}

impl Steps {
    /// So many.
    pub fn new(steps: u64) -> Self {
        Self {
            left: Cell::new(steps),
            spent: Cell::new(0),
        }
    }

    pub fn left(&self) -> u64 {
        self.left.get()
    }

    /// Spent so far, those included that were granted since.
    pub fn spent(&self) -> u64 {
        self.spent.get()
    }

    pub fn spend(&self, steps: u64) {
        self.left.set(self.left().saturating_sub(steps));
        self.spent.set(self.spent() + steps);
    }

    /// Runs a part of the search with no more than so many of the steps that are left.
    pub fn share<T>(&self, steps: u64, part: impl FnOnce() -> T) -> T {
        let kept_back = self.left().saturating_sub(steps);
        self.left.set(self.left() - kept_back);
        let found = part();
        self.left.set(self.left() + kept_back);
        found
    }

    /// At least so many are left.
    pub fn grant(&self, steps: u64) {
        self.left.set(self.left().max(steps));
    }
}

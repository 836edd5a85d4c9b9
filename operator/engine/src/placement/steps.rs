//! Step limit of placement searches over several shapes.

use std::cell::Cell;

/// Step limit of [`place`](crate::place). Preemption has its own limit.
pub const PLACEMENT_STEPS: u64 = 1_000_000;

/// Steps of all placements of one decision, so that equal input gives equal answers. One step is
/// one visited node pattern.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    left: Cell<u64>,
    spent: Cell<u64>,
}

impl Steps {
    pub fn new(steps: u64) -> Self {
        Self {
            left: Cell::new(steps),
            spent: Cell::new(0),
        }
    }

    pub fn left(&self) -> u64 {
        self.left.get()
    }

    /// Spent steps, including steps granted later.
    pub fn spent(&self) -> u64 {
        self.spent.get()
    }

    pub fn spend(&self, steps: u64) {
        self.left.set(self.left().saturating_sub(steps));
        self.spent.set(self.spent() + steps);
    }

    /// Runs a part of the search with at most `steps` of the remaining steps.
    pub fn share<T>(&self, steps: u64, part: impl FnOnce() -> T) -> T {
        let kept_back = self.left().saturating_sub(steps);
        self.left.set(self.left() - kept_back);
        let result = part();
        self.left.set(self.left() + kept_back);
        result
    }

    /// Raises the remaining steps to at least `steps`.
    pub fn grant(&self, steps: u64) {
        self.left.set(self.left().max(steps));
    }
}

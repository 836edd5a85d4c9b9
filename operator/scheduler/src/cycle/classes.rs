//! Classes of waiting gangs with equal requests. What blocks the first gang of a class blocks all,
//! until a gang gets or releases capacity.

use crate::asks::Asks;
use crate::pending::Pending;

#[derive(Debug, Default)]
pub(super) struct WaitingClasses(Vec<WaitingClass>);

#[derive(Debug)]
struct WaitingClass {
    asks: Asks,
    pending: Pending,
}

impl WaitingClasses {
    pub fn pending(&self, asks: &Asks) -> Option<&Pending> {
        let mut known = self.0.iter();
        let known = known.find(|class| class.asks == *asks)?;
        Some(&known.pending)
    }

    /// Records the verdict on a gang without a reservation.
    pub fn waits(&mut self, asks: Asks, pending: &Pending) {
        // No later gang has fewer reservations ahead.
        self.0.retain(|class| class.asks.ahead == asks.ahead);
        self.0.push(WaitingClass {
            asks,
            pending: pending.clone(),
        });
    }

    /// Drops verdicts after a gang gets capacity or is to release some.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

//! Classes of waiting gangs with equal requests. What blocks the first gang of a class blocks all,
//! until a gang gets or releases capacity.

use crate::gang::pending::Pending;
use crate::memory::equivalence_class::EquivalenceClass;

#[derive(Debug, Default)]
pub(super) struct WaitingClasses(Vec<(EquivalenceClass, Pending)>);

impl WaitingClasses {
    pub fn pending(&self, class: &EquivalenceClass) -> Option<&Pending> {
        let (_, pending) = self.0.iter().find(|(known, _)| known == class)?;
        Some(pending)
    }

    /// Records the verdict on a gang without a reservation.
    pub fn waits(&mut self, class: EquivalenceClass, pending: &Pending) {
        // No later gang has fewer reservations ahead.
        self.0.retain(|(known, _)| known.ahead == class.ahead);
        self.0.push((class, pending.clone()));
    }

    /// Drops verdicts after a gang gets capacity or is to release some.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

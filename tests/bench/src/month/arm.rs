//! What the manager does in each arm.

use super::Time;

/// The arms, each with all of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// Each restart replaces all pods.
    NewPods,
    /// Restarts in place.
    InPlace,
    /// Checkpoints on request before stops.
    Requests,
    /// Gangs leave nodes with signals.
    Signals,
}

impl Arm {
    /// All arms.
    pub const ALL: [Self; 4] = [Self::NewPods, Self::InPlace, Self::Requests, Self::Signals];

    /// Its name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::NewPods => "new pods for all",
            Self::InPlace => "in place",
            Self::Requests => "in place, requests",
            Self::Signals => "in place, requests, signals",
        }
    }

    /// Seconds from a stop until all processes run, without image and checkpoint. Measured by
    /// `make bench-kubelets` and `make bench-scale`: 0.22 and 3.3 s in place, 4.3 and 66 s with new
    /// pods, for few and for 1,000 members.
    pub(crate) fn restart(self, members: usize, changes_nodes: bool) -> Time {
        let (first, thousand) = if self == Self::NewPods {
            (4.3, 66.0)
        } else if changes_nodes {
            (4.3, 7.4)
        } else {
            (0.22, 3.3)
        };
        let seconds: f64 = first + (thousand - first) * members as f64 / 1000.0;
        seconds.ceil() as Time
    }
}

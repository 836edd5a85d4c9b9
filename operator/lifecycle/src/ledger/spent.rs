//! Accelerator time of a workload.

use chrono::{DateTime, Utc};

/// Accelerator time, in whole seconds of the clock, so that records lose no fractions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Accelerators that its gangs hold.
    pub accelerators: i64,
    /// Accelerator-seconds held until `until`.
    pub held: i64,
    /// End of the accounted time.
    pub until: Option<DateTime<Utc>>,
    /// Accelerator-seconds of `held` that incidents and preemption have lost.
    pub lost: i64,
    /// Seconds in which a gang wanted capacity and had none, until `waiting_since`.
    pub waited: i64,
    /// Since when a gang wants capacity.
    pub waiting_since: Option<DateTime<Utc>>,
}

impl Spent {
    /// Share of the held time that was not lost, such as `97.3%`. `None` if nothing was held.
    pub fn goodput(&self) -> Option<String> {
        let held = u64::try_from(self.held).ok().filter(|held| *held > 0)?;
        let kept = u64::try_from(self.held.saturating_sub(self.lost)).unwrap_or(0);
        let permille = u128::from(kept) * 1000 / u128::from(held);
        Some(format!("{}.{}%", permille / 10, permille % 10))
    }
}

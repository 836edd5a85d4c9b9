//! Accelerator time that is accounted for.

use chrono::{DateTime, Utc};

/// Time that is accounted for. It is counted in whole seconds of the clock, so that no rest is lost
/// at a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Accelerators that its gangs hold.
    pub accelerators: i64,
    /// Accelerator-seconds that they have held, up to `until`.
    pub held: i64,
    /// Up to when.
    pub until: Option<DateTime<Utc>>,
    /// Accelerator-seconds of these that incidents and preemption have lost.
    pub lost: i64,
    /// Seconds in which a gang wanted capacity and had none, up to `waiting_since`.
    pub waited: i64,
    /// Since when one does.
    pub waiting_since: Option<DateTime<Utc>>,
}

impl Spent {
    /// Share of the held time that was not lost, such as `97.3%`; none while nothing was held.
    pub fn goodput(&self) -> Option<String> {
        let held = u64::try_from(self.held).ok().filter(|held| *held > 0)?;
        let kept = u64::try_from(self.held.saturating_sub(self.lost)).unwrap_or(0);
        let permille = u128::from(kept) * 1000 / u128::from(held);
        Some(format!("{}.{}%", permille / 10, permille % 10))
    }
}

use chrono::{DateTime, Utc};

/// In whole seconds, so that records lose no fractions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub accelerators: i64,
    /// Until `until`.
    pub held: i64,
    pub until: Option<DateTime<Utc>>,
    /// Part of `held`.
    pub lost: i64,
    /// Seconds without wanted capacity, until `waiting_since`.
    pub waited: i64,
    pub waiting_since: Option<DateTime<Utc>>,
}

impl Spent {
    /// Share of the held time that was not lost, such as `97.3%`.
    pub fn goodput(&self) -> Option<String> {
        let held = u64::try_from(self.held).ok().filter(|held| *held > 0)?;
        let kept = u64::try_from(self.held.saturating_sub(self.lost)).unwrap_or(0);
        let permille = u128::from(kept) * 1000 / u128::from(held);
        Some(format!("{}.{}%", permille / 10, permille % 10))
    }
}

use chrono::{DateTime, Utc};

/// Accelerator time of a workload. Whole seconds, so that writing and reading the status keeps the
/// value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub accelerators: i64,
    /// Accelerator-seconds held up to `until`.
    pub held: i64,
    pub until: Option<DateTime<Utc>>,
    /// Lost work and cost of restarts, parts of `held`.
    pub loss: Loss,
    /// Seconds in which a gang requested capacity and did not hold it, excluding the time since
    /// `waiting_since`.
    pub waited: i64,
    pub waiting_since: Option<DateTime<Utc>>,
}

/// Accelerator-seconds that incidents cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Work since the last checkpoint. 0 for members that have not run.
    pub work: i64,
    /// From the failure until all members ran again.
    pub restart: i64,
}

impl Loss {
    pub fn add(&mut self, other: Self) {
        self.work = self.work.saturating_add(other.work);
        self.restart = self.restart.saturating_add(other.restart);
    }
}

impl Spent {
    /// Share of the held time that was neither lost work nor cost of restarts, such as `97.3%`.
    pub fn goodput(&self) -> Option<String> {
        let held = u64::try_from(self.held).ok().filter(|held| *held > 0)?;
        let Loss { work, restart } = self.loss;
        let kept = self.held.saturating_sub(work).saturating_sub(restart);
        let kept = u64::try_from(kept).unwrap_or(0);
        let permille = u128::from(kept) * 1000 / u128::from(held);
        Some(format!("{}.{}%", permille / 10, permille % 10))
    }
}

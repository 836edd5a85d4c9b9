use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::workload::RestartLimits;

use super::RestartBudget;

impl RestartBudget {
    pub fn has_unit_left(&self, limits: &RestartLimits, now: DateTime<Utc>) -> bool {
        self.used(limits, now) < limits.max_restarts.max(0) as usize
    }

    pub fn used(&self, limits: &RestartLimits, at: DateTime<Utc>) -> usize {
        let window = TimeDelta::seconds(limits.window_seconds);
        let used = self.counted_at.iter().filter(|used| **used + window > at);
        used.count()
    }

    /// Removes the latest charge made at `charged_at`. If there is none, removes the last charge.
    pub fn refund(&mut self, charged_at: DateTime<Utc>) {
        let at = self.counted_at.iter().rposition(|at| *at == charged_at);
        if let Some(at) = at.or(self.counted_at.len().checked_sub(1)) {
            self.counted_at.remove(at);
        }
        self.counted = (self.counted - 1).max(0);
    }

    /// False if the window has no restart left.
    pub fn charge(&mut self, limits: &RestartLimits, now: DateTime<Utc>) -> bool {
        let window = TimeDelta::seconds(limits.window_seconds);
        self.counted_at.retain(|at| *at + window > now);
        if !self.has_unit_left(limits, now) {
            return false;
        }
        self.counted_at.push(now);
        self.counted += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_counts_in_a_sliding_window() {
        let at = |s| DateTime::from_timestamp(s, 0).unwrap();
        let limits = RestartLimits {
            max_restarts: 2,
            window_seconds: 100,
        };
        let mut budget = RestartBudget::default();
        assert!(budget.charge(&limits, at(0)));
        assert!(budget.charge(&limits, at(50)));
        assert!(!budget.charge(&limits, at(99)), "two units within 100 s");
        assert!(
            budget.charge(&limits, at(100)),
            "the first has left the window"
        );
        assert_eq!((budget.counted, budget.counted_at.len()), (3, 2));
    }

    #[test]
    fn a_budget_of_zero_allows_no_incident() {
        let limits = RestartLimits {
            max_restarts: 0,
            window_seconds: 100,
        };
        assert!(!RestartBudget::default().charge(&limits, DateTime::UNIX_EPOCH));
    }
}

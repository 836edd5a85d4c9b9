//! The table printed at the end.

use std::time::Duration;

use lockstep_api::workload::Phases;

use crate::calls::Calls;
use crate::record::TRAIL;

/// Result of a round of an arm.
#[derive(Default)]
pub struct Round {
    /// Time from the cause until all members run.
    pub took: Duration,
    /// Writes in that time.
    pub calls: Calls,
    /// Number of members whose pod was kept.
    pub kept: usize,
    /// Phases according to the manager, if the arm is a restart.
    pub phases: Option<Phases>,
    /// Milliseconds from the failure until each agent had the order, sorted.
    pub delivered: Vec<i64>,
}

impl Round {
    /// Time in which its writes were counted.
    pub fn watched(&self) -> Duration {
        self.took + TRAIL
    }

    /// Milliseconds from the manager's detection of the failure until 99 % of the agents had the
    /// order.
    pub fn ordered_p99(&self) -> Option<i64> {
        let last = self.delivered.len().checked_sub(1)?;
        let since_failure = *self.delivered.get(last * 99 / 100)?;
        Some(since_failure - self.phases.as_ref().map_or(0, |p| p.detect_ms))
    }

    /// Times of the order's delivery.
    pub fn delivery(&self) -> String {
        let (Some(p99), Some(last)) = (self.ordered_p99(), self.delivered.last()) else {
            return "none in time".to_owned();
        };
        let heard = self.delivered.len();
        format!("{heard}, p99 {p99} ms after it was known; last {last} ms after the failure")
    }
}

/// An arm.
pub struct Arm {
    pub name: String,
    pub rounds: Vec<Round>,
}

impl Arm {
    /// Median of its rounds in seconds: the mean of the two middle values if their number is even.
    pub fn median(&self) -> f64 {
        let mut all: Vec<f64> = self.rounds.iter().map(|r| r.took.as_secs_f64()).collect();
        all.sort_by(f64::total_cmp);
        let (Some(upper), Some(lower)) =
            (all.get(all.len() / 2), all.get((all.len().max(1) - 1) / 2))
        else {
            return f64::NAN;
        };
        f64::midpoint(*lower, *upper)
    }

    /// A row of the table, with the seconds of the recreation for comparison, if measured.
    pub fn row(&self, recreated: Option<f64>) -> String {
        let times: Vec<String> = self
            .rounds
            .iter()
            .map(|r| format!("{:.2}", r.took.as_secs_f64()))
            .collect();
        let by = |who| {
            let calls = self.rounds.iter().map(|r| r.calls.by(who)).max();
            calls.unwrap_or(0)
        };
        let kept = self.rounds.iter().map(|r| r.kept).min().unwrap_or(0);
        let phases = self.rounds.iter().filter_map(|r| r.phases.as_ref());
        let arrived = phases.map(|p| p.decide_ms + p.stop_ms).max();
        let arrived = arrived.map_or_else(|| "-".into(), |ms| ms.to_string());
        let p99 = self.rounds.iter().filter_map(Round::ordered_p99).max();
        let ordered = p99.map_or_else(|| "-".into(), |ms| ms.to_string());
        let not_ready: usize = self.rounds.iter().map(|r| r.calls.not_ready.len()).sum();
        let mark = match not_ready {
            0 => String::new(),
            n => format!(" (**{n} NotReady**)"),
        };
        let ratio = recreated.map(|base| base / self.median());
        let ratio = ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.1}"));
        format!(
            "| {}{mark} | {:.2} ({}) | {ratio} | {ordered} | {arrived} | {} | {} | {} | {kept} |",
            self.name,
            self.median(),
            times.join(", "),
            by("manager"),
            by("agents"),
            by("kubelets"),
        )
    }
}

/// Head of the table.
pub const HEAD: &str = "| arm | seconds, median (each) | recreated / this | failure known to order at all agents, ms, p99, worst | known to all stopped, ms, worst | writes: manager | agents | kubelets | pods kept |\n|---|---|---|---|---|---|---|---|---|";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_counts_from_when_the_failure_is_known() {
        let phases = Phases {
            detect_ms: 1_500,
            ..Phases::default()
        };
        let round = Round {
            phases: Some(phases),
            delivered: (1_900..2_000).collect(),
            ..Round::default()
        };
        assert_eq!(round.ordered_p99(), Some(498));
        assert_eq!(Round::default().ordered_p99(), None);
    }
}

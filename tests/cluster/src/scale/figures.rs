//! The table that is printed in the end.

use std::time::Duration;

use lockstep_api::workload::Phases;

use crate::calls::Calls;

/// What one arm has shown in one round.
pub struct Round {
    /// From the cause until all members run.
    pub took: Duration,
    /// Writes of that time.
    pub calls: Calls,
    /// Members whose pod was kept.
    pub kept: usize,
    /// The manager's account, where the arm is a restart.
    pub phases: Option<Phases>,
}

/// One arm.
pub struct Arm {
    pub name: String,
    pub rounds: Vec<Round>,
}

impl Arm {
    /// The median of its rounds, in seconds.
    pub fn median(&self) -> f64 {
        let mut all: Vec<f64> = self.rounds.iter().map(|r| r.took.as_secs_f64()).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// A row of the table.
    pub fn row(&self, base: f64) -> String {
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
        // Who has arrived has had its order, so this is more than the way of the order.
        let arrived = phases.map(|p| p.decide_ms + p.stop_ms).max();
        let arrived = arrived.map_or_else(|| "-".into(), |ms| ms.to_string());
        format!(
            "| {} | {:.2} ({}) | {:.1} | {arrived} | {} | {} | {} | {kept} |",
            self.name,
            self.median(),
            times.join(", "),
            base / self.median(),
            by("manager"),
            by("agents"),
            by("kubelets"),
        )
    }
}

/// Head of the table.
pub const HEAD: &str = "| arm | seconds, median (each) | recreated / this | known to all stopped, ms, worst | writes: manager | agents | kubelets | pods kept |\n|---|---|---|---|---|---|---|---|";

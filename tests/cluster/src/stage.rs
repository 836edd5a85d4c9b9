//! Progress and results of a demonstration.

#![expect(
    clippy::disallowed_methods,
    reason = "a demonstration shows the time of the machine"
)]

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use lockstep_api::workload::HistoryEntry;
use tokio::time::Instant;

/// Prints progress and keeps the results.
pub struct Stage {
    start: Instant,
    results: Vec<(String, Duration, Result<String>)>,
}

impl Stage {
    /// Start of the times in the output.
    pub fn begin() -> Self {
        Self {
            start: Instant::now(),
            results: Vec::new(),
        }
    }

    /// Prints a line with the time since the start.
    pub fn say(&self, line: &str) {
        println!("{:7.1}s  {line}", self.start.elapsed().as_secs_f64());
    }

    /// Announces the next act.
    pub fn act(&self, title: &str) {
        println!();
        self.say(title);
    }

    /// Runs a step, which returns its observation.
    pub async fn step(&mut self, title: &str, body: impl AsyncFnOnce(&Self) -> Result<String>) {
        self.say(&format!("== {title}"));
        let begun = Instant::now();
        let outcome = body(self).await;
        match &outcome {
            Ok(seen) => self.say(&format!("   seen: {seen}")),
            Err(error) => self.say(&format!("   NOT SEEN: {error:#}")),
        }
        self.results
            .push((title.to_owned(), begun.elapsed(), outcome));
    }

    /// Prints the table of all steps. True if all were observed.
    pub fn summary(&self) -> bool {
        let width = self
            .results
            .iter()
            .map(|(title, ..)| title.len())
            .max()
            .unwrap_or(0);
        let mut table = String::from("\n");
        for (title, took, outcome) in &self.results {
            let seen = match outcome {
                Ok(seen) => format!("ok      {seen}"),
                Err(_) => "FAILED".into(),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(table, "{title:width$}  {:6.1}s  {seen}", took.as_secs_f64());
        }
        println!("{table}");
        self.results.iter().all(|(.., outcome)| outcome.is_ok())
    }
}

/// Time of a restart, from the failure until all members run again, and of its phases.
pub fn timings(incident: &HistoryEntry) -> Result<String> {
    let took = incident.recovered_at.context("not recovered")? - incident.time;
    let p = &incident.phases;
    Ok(format!(
        "{} ms (detect {}, decide {}, stop {}, barrier {}, start {})",
        took.num_milliseconds(),
        p.detect_ms,
        p.decide_ms,
        p.stop_ms,
        p.barrier_ms,
        p.start_ms
    ))
}

//! Rounds and their table.

use std::fmt::Write;

use chrono::TimeDelta;
use lockstep_api::workload::HistoryEntry;
use lockstep_containers::job::Reached;

/// One round, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// From the placement of the new workload until condition Ready.
    start: f64,
    /// From the kill until all members run the next attempt, from their journals.
    running: f64,
    /// Phases of the last incident according to the manager: detect, decide, stop, barrier, start.
    phases: [f64; 5],
    /// From the start of the last process until all members met, from their journals.
    meet: f64,
    /// From then until the last member's first step.
    step: f64,
}

const PHASES: [&str; 5] = ["detect", "decide", "stop", "barrier", "start"];

impl Round {
    /// From the journals of members and the manager's history. `killed` is in microseconds since
    /// 1970.
    pub fn new(start: TimeDelta, killed: u64, reached: Reached, entry: &HistoryEntry) -> Self {
        let phases = &entry.phases;
        Self {
            start: start.num_milliseconds() as f64,
            running: millis(killed, reached.started),
            phases: [
                phases.detect_ms,
                phases.decide_ms,
                phases.stop_ms,
                phases.barrier_ms,
                phases.start_ms,
            ]
            .map(|ms| ms as f64),
            meet: millis(reached.started, reached.met),
            step: millis(reached.met, reached.stepped),
        }
    }
}

fn millis(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1000.0
}

const LEGEND: &str = "\
Milliseconds, medians where nothing else is said. running: from the kill until all members run again, of which detect,
decide, stop, barrier and start are the parts that the manager records. meet: from there until all members have
completed their rendezvous; first step: until the last one has done a step. place to ready: a new workload.
";

/// A row for each arm, with a legend. The ratio is to the last arm if that is `recreate`. One round
/// has no quantiles.
pub fn table(arms: &[(&str, Vec<Round>)]) -> String {
    let repeated = arms.iter().any(|(_, rounds)| rounds.len() > 1);
    let mut columns = vec!["tier", "rounds", "running"];
    if repeated {
        columns.extend(["p95", "least", "most"]);
    }
    columns.push("against RecreateGang");
    columns.extend(PHASES);
    columns.extend(["meet", "first step", "place to ready"]);
    let rule = vec!["---"; columns.len()].join("|");
    let mut out = format!("{LEGEND}\n| {} |\n|{rule}|\n", columns.join(" | "));
    let base = arms.iter().find(|(name, _)| *name == "recreate");
    let base = base.map(|(_, rounds)| median(rounds, |r| r.running));
    for (name, rounds) in arms {
        let running = median(rounds, |r| r.running);
        let ratio = base.map_or_else(|| "-".into(), |base| format!("{:.1} x", base / running));
        // Writing to a string cannot fail.
        let _ = write!(out, "| {name} | {} | {running:.0} |", rounds.len());
        for share in [0.95, 0.0, 1.0].into_iter().filter(|_| repeated) {
            let _ = write!(out, " {:.0} |", quantile(rounds, share, |r| r.running));
        }
        let _ = write!(out, " {ratio} |");
        for phase in 0..PHASES.len() {
            let _ = write!(out, " {:.0} |", median(rounds, |r| r.phases[phase]));
        }
        let _ = writeln!(
            out,
            " {:.0} | {:.0} | {:.0} |",
            median(rounds, |r| r.meet),
            median(rounds, |r| r.step),
            median(rounds, |r| r.start)
        );
    }
    out
}

fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut all: Vec<f64> = rounds.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    let (low, high) = (all.len().saturating_sub(1) / 2, all.len() / 2);
    match (all.get(low), all.get(high)) {
        (Some(low), Some(high)) => f64::midpoint(*low, *high),
        _ => 0.0,
    }
}

/// Quantile of the rounds, rounded up to a measured value.
fn quantile(rounds: &[Round], share: f64, of: impl Fn(&Round) -> f64) -> f64 {
    let mut all: Vec<f64> = rounds.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    let at = (share * all.len() as f64).ceil() as usize;
    all.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

//! Limits of the cost of a large gang.

use crate::figures::Arm;

/// Writes of a supervised restart in addition to one per node and the summaries.
const BESIDE_NODES: usize = 6;
/// Time within which 99 % of the agents have the order.
const ORDER_MS: i64 = 2_000;
/// Minimum ratio of the recreation's time to the restart's.
const FASTER: f64 = 10.0;
/// Limit of the manager's memory in MB.
const MEMORY_MB: f64 = 250.0;

/// A limit and its measurement.
#[derive(Debug)]
pub struct Line {
    text: String,
    held: bool,
    /// True for counts. Times depend on the machine and never fail the benchmark.
    counted: bool,
}

impl Line {
    fn counted(text: String, held: bool) -> Self {
        Self {
            text,
            held,
            counted: true,
        }
    }

    fn timed(text: String, held: bool) -> Self {
        Self {
            text,
            held,
            counted: false,
        }
    }

    /// True if it fails the benchmark.
    pub fn fails(&self) -> bool {
        self.counted && !self.held
    }

    /// The printed line.
    pub fn show(&self) -> String {
        let verdict = if self.held { "held" } else { "MISSED" };
        format!("{verdict}: {}", self.text)
    }
}

/// All limits, for a gang on this number of nodes whose manager used this much memory at most.
pub fn lines(nodes: usize, supervised: &Arm, anew: &Arm, memory_mb: f64) -> Vec<Line> {
    let mut lines = Vec::new();
    for (at, round) in supervised.rounds.iter().enumerate() {
        let (calls, round_name) = (&round.calls, format!("supervised restart {}", at + 1));
        let summaries = calls.of("manager", "patch trainingworkloads/status");
        let writes = calls.by("manager") + calls.by("agents") - summaries;
        let most = nodes + BESIDE_NODES;
        lines.push(Line::counted(
            format!("{round_name}: {writes} writes but summaries, {most} at most"),
            writes <= most,
        ));
        // Summaries within the time in which the arm's writes were counted, and the summary at its
        // start.
        let most = 1 + round.watched().as_secs_f64().ceil() as usize;
        lines.push(Line::counted(
            format!("{round_name}: {summaries} summaries, {most} at most: one a second"),
            summaries <= most,
        ));
        let kubelets = calls.by("kubelets");
        lines.push(Line::counted(
            format!("{round_name}: {kubelets} writes of kubelets, none at most"),
            kubelets == 0,
        ));
        let heard = round.delivered.len();
        lines.push(Line::counted(
            format!("{round_name}: the order was with {heard} of {nodes} agents"),
            heard == nodes,
        ));
        let p99 = round.ordered_p99().unwrap_or(i64::MAX);
        lines.push(Line::timed(
            format!("{round_name}: the order was with 99 % of the agents {p99} ms after the failure was known, less than {ORDER_MS}"),
            p99 < ORDER_MS,
        ));
    }
    let faster = anew.median() / supervised.median();
    lines.push(Line::timed(
        format!("recreated / supervised: {faster:.1}, {FASTER} at least"),
        faster >= FASTER,
    ));
    lines.push(Line::timed(
        format!("memory of the manager: {memory_mb:.0} MB, {MEMORY_MB:.0} at most"),
        memory_mb < MEMORY_MB,
    ));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Calls;
    use crate::figures::Round;
    use std::time::Duration;

    fn arm(seconds: u64, agents: usize, summaries: usize, kubelets: usize, heard: i64) -> Arm {
        let calls = [
            ("manager", "patch restartorders", 2),
            ("manager", "patch trainingworkloads/status", summaries),
            ("agents", "update nodeagents/status", agents),
            ("kubelets", "patch pods/status", kubelets),
        ];
        let round = Round {
            took: Duration::from_secs(seconds),
            calls: Calls::of_these(&calls),
            delivered: (0..heard).collect(),
            ..Round::default()
        };
        Arm {
            name: "an arm".to_owned(),
            rounds: vec![round],
        }
    }

    fn missed(supervised: &Arm, anew: &Arm, memory_mb: f64) -> Vec<String> {
        let lines = lines(100, supervised, anew, memory_mb);
        let missed = lines.iter().filter(|line| !line.held);
        missed.map(Line::show).collect()
    }

    #[test]
    fn a_round_within_its_budgets_misses_none() {
        assert!(missed(&arm(1, 104, 5, 0, 100), &arm(10, 0, 0, 0, 0), 249.0).is_empty());
    }

    #[test]
    fn a_round_beyond_its_writes_is_refused() {
        let anew = arm(10, 0, 0, 0, 0);
        for (mistake, words) in [
            (arm(1, 105, 5, 0, 100), "107 writes but summaries"),
            (arm(1, 104, 6, 0, 100), "6 summaries, 5 at most"),
            (arm(1, 104, 5, 1, 100), "1 writes of kubelets"),
            (arm(1, 104, 5, 0, 99), "with 99 of 100 agents"),
        ] {
            let lines = lines(100, &mistake, &anew, 100.0);
            let failed: Vec<&Line> = lines.iter().filter(|line| line.fails()).collect();
            assert_eq!(failed.len(), 1, "{failed:?}");
            assert!(failed[0].text.contains(words), "{failed:?}");
        }
    }

    #[test]
    fn timings_are_reported_and_never_fail_the_run() {
        let mut late = arm(1, 104, 5, 0, 100);
        late.rounds[0].delivered = vec![2_000; 100];
        let lines = lines(100, &late, &arm(9, 0, 0, 0, 0), 250.0);
        assert_eq!(lines.iter().filter(|line| !line.held).count(), 3);
        assert!(!lines.iter().any(Line::fails));
    }
}

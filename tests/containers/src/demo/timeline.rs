//! How long the members were away, and for what.

use std::fmt::{self, Write};

use lockstep_api::workload::HistoryEntry;
use lockstep_containers::job::Reached;

use crate::act::Act;

/// Parts of the time from a trouble until all have done a step again, one after the other.
///
/// | part | until |
/// |---|---|
/// | detect | the manager knows |
/// | decide | it writes the order |
/// | order | it has seen the order come from the API server |
/// | stop | all members have stopped and arrived at the barrier |
/// | barrier | it opens |
/// | start | the last process has started |
/// | meet | all have met |
/// | first step | the last of them has done one |
const PARTS: [&str; 8] = [
    "detect",
    "decide",
    "order",
    "stop",
    "barrier",
    "start",
    "meet",
    "first step",
];
const MICROS: i64 = 1000;

/// Length of each part, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline([i64; PARTS.len()]);

impl Timeline {
    /// `at` and `ordered` are when the trouble came and when the order was written, in microseconds
    /// since 1970; the rest is what the manager and the members have noted.
    pub fn new(at: u64, ordered: i64, entry: &HistoryEntry, reached: Reached) -> Self {
        let p = &entry.phases;
        let mut known = entry.time.timestamp_micros();
        let mut after = |ms: i64| {
            known += ms * MICROS;
            known
        };
        let detected = after(p.detect_ms);
        let seen = after(p.decide_ms);
        let arrived = after(p.stop_ms);
        let open = after(p.barrier_ms + p.start_ms);
        let noted = |micros: u64| i64::try_from(micros).unwrap_or(i64::MAX);
        let (started, met) = (noted(reached.started), noted(reached.met));
        let ends = [
            detected,
            ordered,
            seen,
            arrived,
            open,
            started,
            met,
            noted(reached.stepped),
        ];
        let mut before = noted(at);
        Self(ends.map(|end| {
            // Milliseconds are cut off, so a part may seem to end before it begins.
            let end = end.max(before);
            end - std::mem::replace(&mut before, end)
        }))
    }

    fn total(self) -> i64 {
        self.0.iter().sum()
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, micros) in PARTS.iter().zip(self.0) {
            write!(f, "{name} {}, ", micros / MICROS)?;
        }
        write!(f, "all {} ms", self.total() / MICROS)
    }
}

/// All acts, in milliseconds.
pub fn table(acts: &[Act]) -> String {
    let mut out = format!("{:24}{:16}", "milliseconds", "cause");
    // Writing to a string cannot fail.
    for name in PARTS.iter().chain(&["all"]) {
        let _ = write!(out, "{name:>11}");
    }
    let _ = writeln!(out, "  step (checkpoint) -> goes on at");
    for act in acts {
        let _ = write!(out, "{:24}{:16}", act.title, act.cause);
        for micros in act.timeline.0.into_iter().chain([act.timeline.total()]) {
            let _ = write!(out, "{:>11}", micros / MICROS);
        }
        let [step, saved, begun] = act.steps;
        let _ = writeln!(out, "  {step} ({saved}) -> {begun}");
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_parts_follow_each_other_and_add_up_to_the_whole_time() {
        let second: u64 = 1_000_000;
        let entry = json!({
            "domain": "workload", "attempt": 2, "action": "RestartGang", "time": "1970-01-01T00:00:01Z",
            "cause": {"kind": "ContainerExit", "time": "1970-01-01T00:00:01Z"},
            "phases": {"detectMs": 100, "decideMs": 30, "stopMs": 200, "barrierMs": 50},
        });
        let entry: HistoryEntry = serde_json::from_value(entry).unwrap();
        let reached = Reached {
            // By the members' own clock, before the manager says that the barrier is open.
            started: 1_379_500,
            met: 1_390_000,
            stepped: 1_420_000,
        };
        let timeline = Timeline::new(second - 40_000, 1_120_000, &entry, reached);
        assert_eq!(
            timeline.to_string(),
            "detect 140, decide 20, order 10, stop 200, barrier 50, start 0, meet 10, first step 30, all 460 ms"
        );
    }
}

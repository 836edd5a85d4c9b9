//! The lines of one attempt in the log of a container with several attempts. The supervisor writes
//! a line at the start of each attempt (`docs/supervisor.md`).

use std::collections::VecDeque;

/// Start of the supervisor's lines about an attempt.
const MARK: &str = "lockstep-run: attempt ";

/// Collects the lines of the last attempt up to a number. A log without marks is one attempt.
#[derive(Clone, Debug)]
pub struct AttemptLog {
    up_to: i64,
    tail: usize,
    lines: VecDeque<String>,
    is_past: bool,
}

impl AttemptLog {
    /// `tail`: number of lines to keep, from the end.
    pub fn new(up_to: i64, tail: Option<i64>) -> Self {
        let tail = tail.and_then(|lines| usize::try_from(lines).ok());
        Self {
            up_to,
            tail: tail.unwrap_or(usize::MAX),
            lines: VecDeque::new(),
            is_past: false,
        }
    }

    pub fn push(&mut self, line: String) {
        if let Some(attempt) = started_attempt(&line) {
            self.is_past = attempt > self.up_to;
            if !self.is_past {
                self.lines.clear();
            }
        }
        if !self.is_past {
            self.lines.push_back(line);
            if self.lines.len() > self.tail {
                self.lines.pop_front();
            }
        }
    }

    pub fn into_lines(self) -> impl Iterator<Item = String> {
        self.lines.into_iter()
    }
}

/// The attempt whose start a line marks. The beginning of the line can be output of the training
/// process.
fn started_attempt(line: &str) -> Option<i64> {
    let (_, mark) = line.rsplit_once(MARK)?;
    let (attempt, verb) = mark.split_once(' ')?;
    verb.starts_with("starts").then(|| attempt.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::AttemptLog;

    const LOG: [&str; 10] = [
        "lockstep-run: held: waiting for the agent of this node",
        "lockstep-run: attempt 1 starts: 2 members, coordinator 10.0.0.7:29500",
        "step 1",
        "lockstep-run: attempt 2 is ordered: stopping attempt 1",
        "lockstep-run: attempt 2 starts: 2 members, coordinator 10.0.0.7:29501",
        "step 2",
        "loss is nan",
        "progress: 40%lockstep-run: attempt 2 ended with code 3",
        "progress: 0%lockstep-run: attempt 4 starts",
        "step 3",
    ];

    fn lines(up_to: i64, tail: Option<i64>, log: &[&str]) -> Vec<String> {
        let mut attempt = AttemptLog::new(up_to, tail);
        for line in log {
            attempt.push((*line).to_owned());
        }
        attempt.into_lines().collect()
    }

    #[test]
    fn the_lines_of_the_last_attempt_up_to_a_number_are_taken() {
        assert_eq!(lines(1, None, &LOG), LOG[1..4]);
        assert_eq!(lines(2, None, &LOG), LOG[4..8]);
        assert_eq!(
            lines(3, None, &LOG),
            LOG[4..8],
            "attempt 3 did not start here"
        );
        assert_eq!(lines(4, None, &LOG), LOG[8..]);
    }

    #[test]
    fn tail_counts_from_the_end_of_the_attempt() {
        assert_eq!(lines(2, Some(2), &LOG), LOG[6..8]);
        assert_eq!(lines(2, Some(0), &LOG), [""; 0]);
        assert_eq!(
            lines(2, Some(-1), &LOG),
            LOG[4..8],
            "all lines, as in kubectl"
        );
    }

    #[test]
    fn lines_before_the_first_mark_belong_to_an_attempt_whose_start_was_rotated_away() {
        assert_eq!(lines(2, None, &LOG[5..]), LOG[5..8]);
    }

    #[test]
    fn a_log_without_marks_is_taken_whole() {
        let log = [
            "step 1",
            "attempt 7 starts",
            "lockstep-run: attempt to guess",
        ];
        assert_eq!(lines(2, None, &log), log);
    }
}

//! Common parts of messages in conditions, events and commands: counts, durations, times, lost
//! work.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;

/// A count with its noun: `1 pod`, `2 pods`.
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// A configured duration in its largest whole unit: `24 h`, `20 min`, `90 s`.
pub fn span(seconds: i64) -> String {
    if seconds >= HOUR && seconds % HOUR == 0 {
        format!("{} h", seconds / HOUR)
    } else if seconds >= MINUTE && seconds % MINUTE == 0 {
        format!("{} min", seconds / MINUTE)
    } else {
        format!("{seconds} s")
    }
}

/// A measured duration: `1.9 s`, `12.5 min`, `3.0 h`.
pub fn took(length: TimeDelta) -> String {
    let seconds = length.num_milliseconds().max(0) as f64 / 1000.0;
    if seconds < 2.0 * MINUTE as f64 {
        format!("{seconds:.1} s")
    } else if seconds < 2.0 * HOUR as f64 {
        format!("{:.1} min", seconds / MINUTE as f64)
    } else {
        format!("{:.1} h", seconds / HOUR as f64)
    }
}

/// A time in the format of object fields: `2026-11-18T12:06:41Z`.
pub fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Accelerator-seconds as GPU-hours, for any kind of accelerator: `1.6 GPU-hours`.
pub fn gpu_hours(accelerator_seconds: impl Into<i128>) -> String {
    let hours = accelerator_seconds.into().max(0) as f64 / HOUR as f64;
    if hours == 0.0 {
        "0 GPU-hours".to_owned()
    } else if hours < 0.01 {
        "<0.01 GPU-hours".to_owned()
    } else if hours < 1.0 {
        format!("{hours:.2} GPU-hours")
    } else {
        format!("{hours:.1} GPU-hours")
    }
}

/// GPU-hours with the exact amount: `1.6 GPU-hours (5760 accelerator-seconds)`.
pub fn exact_gpu_hours(accelerator_seconds: impl Into<i128>) -> String {
    let exact = accelerator_seconds.into();
    format!("{} ({exact} accelerator-seconds)", gpu_hours(exact))
}

/// What a preemptor waits for before it evicts: the checkpoints of this number of gangs.
pub fn checkpoint_wait(gangs: usize, end: DateTime<Utc>) -> String {
    let gangs = count(gangs, "gang");
    format!("waits until {} for checkpoints of {gangs}", time(end))
}

/// In the message of condition PodGroupInitiallyScheduled, between the nodes of the placed members
/// and the reason why other members have none.
const OTHER_MEMBERS: &str = "; other members are pending: ";

/// Message of condition PodGroupInitiallyScheduled of a gang of which some members have no node.
pub fn placed_in_part(placed: &str, pending: &str) -> String {
    format!("{placed}{OTHER_MEMBERS}{pending}")
}

/// Why some members have no node, from such a message.
pub fn other_members_pending(message: &str) -> Option<&str> {
    let (_, pending) = message.split_once(OTHER_MEMBERS)?;
    Some(pending)
}

/// Between the reason why a gang waits and the start of its open node demand.
const NODES_REQUESTED: &str = "; nodes are requested since ";

/// Message of a waiting gang for which a node autoscaler is asked for nodes.
pub fn nodes_requested(waiting: &str, since: DateTime<Utc>, number: i32) -> String {
    format!("{waiting}{NODES_REQUESTED}{} (try {number})", time(since))
}

/// True if nodes are requested according to such a message.
pub fn requests_nodes(message: &str) -> bool {
    message.contains(NODES_REQUESTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_something_is_no_more_than_one() {
        assert_eq!(
            (count(1, "pod"), count(0, "pod")),
            ("1 pod".into(), "0 pods".into())
        );
    }

    #[test]
    fn lengths_of_time_are_read_at_a_glance() {
        let said = [0, 59, 60, 90, 1200, 3600, 5400, 86_400].map(span);
        let expected = [
            "0 s", "59 s", "1 min", "90 s", "20 min", "1 h", "90 min", "24 h",
        ];
        assert_eq!(said, expected);
        let said =
            [-5, 1949, 119_900, 750_000, 10_800_000].map(|ms| took(TimeDelta::milliseconds(ms)));
        assert_eq!(said, ["0.0 s", "1.9 s", "119.9 s", "12.5 min", "3.0 h"]);
    }

    #[test]
    fn lost_work_is_in_hours_of_a_gpu_and_its_seconds_are_there_to_be_added_up() {
        let said = [0, 16, 36, 242, 3599, 5760, 3_600_000].map(gpu_hours);
        let expected = ["0", "<0.01", "0.01", "0.07", "1.00", "1.6", "1000.0"];
        assert_eq!(said, expected.map(|hours| format!("{hours} GPU-hours")));
        assert_eq!(
            exact_gpu_hours(5760),
            "1.6 GPU-hours (5760 accelerator-seconds)"
        );
    }

    #[test]
    fn a_time_reads_as_in_the_fields_of_objects() {
        let at = DateTime::from_timestamp_millis(1_795_000_001_234).unwrap();
        assert_eq!(time(at), "2026-11-18T11:06:41Z");
        assert_eq!(
            serde_json::to_value(at).unwrap(),
            "2026-11-18T11:06:41.234Z"
        );
    }
}

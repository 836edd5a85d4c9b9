//! Containers that are stopped with the training container of a pod.
//!
//! RestartAllContainers sends SIGTERM to each container in sequence and waits two seconds, whatever
//! the grace period. Ended containers cost no time.

use super::{NodePod, Record};

/// Ids of other containers that are older than the stop or end of the training container. Newer
/// containers belong to the next attempt.
pub(super) fn companions<'a>(
    pod: &'a NodePod,
    record: &Record,
) -> impl Iterator<Item = String> + use<'a> {
    let until = record
        .stopping_since
        .or(record.exited_at)
        .filter(|_| pod.restarts_whole);
    let running = pod.others.values().flatten().filter(|c| c.exit.is_none());
    running
        .filter(move |c| until.is_some_and(|t| c.created_at <= t))
        .map(|c| c.id.clone())
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};

    use super::*;
    use crate::{Exit, ObservedContainer};

    fn at(s: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(s, 0).unwrap()
    }

    fn container(id: &str, created: i64, ended: Option<i64>) -> ObservedContainer {
        let exit = ended.map(|s| Exit {
            code: 0,
            reason: "Completed".into(),
            at: at(s),
        });
        ObservedContainer {
            id: id.into(),
            restarts: 0,
            created_at: at(created),
            exit,
        }
    }

    fn stopped_with(
        restarts_whole: bool,
        stopping_since: Option<i64>,
        exited_at: Option<i64>,
    ) -> Vec<String> {
        let others = vec![
            container("init", 0, Some(1)),
            container("old", 2, None),
            container("young", 6, None),
        ];
        let pod = NodePod {
            restarts_whole,
            others: [("other".to_owned(), others)].into(),
            ..NodePod::default()
        };
        let record = Record {
            container_id: "training".into(),
            restarts: 0,
            attempt: 1,
            seen_at: at(2),
            stopping_since: stopping_since.map(at),
            exited_at: exited_at.map(at),
            cleared_for: None,
            arrived: false,
            told_end: None,
            called: None,
        };
        companions(&pod, &record).collect()
    }

    #[test]
    fn companions_of_a_stopped_container_stop_with_it_unless_created_later() {
        assert_eq!(stopped_with(true, Some(5), None), ["old"]);
        assert_eq!(
            stopped_with(true, Some(5), Some(7)),
            ["old"],
            "what came after the stop stays"
        );
    }

    #[test]
    fn what_runs_beside_a_container_that_failed_by_itself_stops_too() {
        assert_eq!(stopped_with(true, None, Some(5)), ["old"]);
    }

    #[test]
    fn if_containers_restart_alone_no_companion_is_stopped() {
        assert!(stopped_with(false, Some(5), None).is_empty());
    }
}

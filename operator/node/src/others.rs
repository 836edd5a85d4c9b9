//! Reports exits of containers other than the training container, because failure rules may name
//! them. After a restart of all containers, pod status shows the cause only briefly.

use std::collections::BTreeMap;

use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::restart_order::DomainOrder;

use super::view::{Exit, NodePod, Record, Records};
use lockstep_api::member_pod::looks_killed;

pub(super) struct Exits {
    /// Runtime id of the last failed container, by name.
    pub noticed: BTreeMap<String, String>,
    pub reports: Vec<Report>,
}

/// `record`: record of the pod's training container. `before`: previous records of all pods.
pub(super) fn exits(
    pod: &NodePod,
    record: Option<&Record>,
    order: Option<&DomainOrder>,
    before: &Records,
) -> Exits {
    let mut noticed = before.others.get(&pod.uid).cloned().unwrap_or_default();
    noticed.retain(|name, _| pod.others.contains_key(name));
    let mut reports = Vec::new();
    for (name, containers) in &pod.others {
        let ended = containers.iter().filter(|c| c.exit.is_some());
        let Some(last) = ended.max_by_key(|c| (c.created_at, &c.id)) else {
            continue;
        };
        let Some(exit) = &last.exit else { continue };
        if !failed_alone(exit) {
            continue;
        }
        let previous = noticed.insert(name.clone(), last.id.clone());
        let reported = before
            .reports
            .iter()
            .any(|r| r.pod_uid == pod.uid && r.container_id == last.id);
        if reported || previous.as_ref() == Some(&last.id) {
            continue;
        }
        reports.push(Report {
            pod_uid: pod.uid.clone(),
            container: name.clone(),
            container_id: last.id.clone(),
            attempt: attempt_of(pod, exit, record, order),
            supervised: false,
            restarts: last.restarts,
            kind: ReportKind::Exited,
            exit_code: exit.code,
            reason: exit.reason.clone(),
            message: String::new(),
            time: exit.at,
        });
    }
    reports.sort_by(|a, b| (a.time, &a.container).cmp(&(b.time, &b.container)));
    Exits { noticed, reports }
}

/// SIGTERM and SIGKILL belong to the end of the pod, or to a restart of all its containers.
fn failed_alone(exit: &Exit) -> bool {
    exit.code != 0 && !looks_killed(exit.code, &exit.reason)
}

/// Without a record of the training container: the attempt of the order, unless the container ended
/// before the order's cause.
fn attempt_of(
    pod: &NodePod,
    exit: &Exit,
    record: Option<&Record>,
    order: Option<&DomainOrder>,
) -> i64 {
    let attempt = order.map_or(pod.attempt, |o| o.attempt.max(pod.attempt));
    let before = order
        .and_then(|o| o.since)
        .is_some_and(|since| exit.at <= since);
    let estimate = if before && pod.attempt < attempt {
        attempt - 1
    } else {
        attempt
    };
    record.map_or(estimate, |r| r.attempt)
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};

    use super::*;
    use crate::ObservedContainer;

    fn at(s: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(s, 0).unwrap()
    }

    fn ended(id: &str, code: i32, reason: &str, s: i64) -> ObservedContainer {
        ObservedContainer {
            id: id.into(),
            restarts: 0,
            created_at: at(s - 1),
            exit: Some(Exit {
                code,
                reason: reason.into(),
                at: at(s),
            }),
        }
    }

    fn with(containers: Vec<ObservedContainer>) -> NodePod {
        NodePod {
            uid: "p".into(),
            attempt: 1,
            others: [("log".to_owned(), containers)].into(),
            ..NodePod::default()
        }
    }

    fn known(exits: &Exits) -> Records {
        Records {
            others: [("p".to_owned(), exits.noticed.clone())].into(),
            ..Records::default()
        }
    }

    #[test]
    fn each_failure_is_reported_once_even_if_its_report_was_evicted() {
        let pod = with(vec![ended("a", 3, "Error", 5)]);
        let first = exits(&pod, None, None, &Records::default());
        let reported: Vec<_> = first
            .reports
            .iter()
            .map(|r| (r.exit_code, r.attempt))
            .collect();
        assert_eq!(reported, [(3, 1)]);
        assert!(exits(&pod, None, None, &known(&first)).reports.is_empty());
        let again = with(vec![ended("a", 3, "Error", 5), ended("b", 4, "Error", 9)]);
        let second = exits(&again, None, None, &known(&first));
        assert_eq!(second.reports[0].container_id, "b");
    }

    #[test]
    fn success_and_signal_exits_are_not_reported_except_out_of_memory() {
        for (code, reason, reported) in [
            (0, "Completed", 0),
            (143, "Error", 0),
            (137, "Error", 0),
            (137, "OOMKilled", 1),
        ] {
            let pod = with(vec![ended("a", code, reason, 5)]);
            let exits = exits(&pod, None, None, &Records::default());
            assert_eq!(exits.reports.len(), reported, "{code} {reason}");
        }
    }

    #[test]
    fn an_agent_without_records_assigns_earlier_exits_to_the_previous_attempt() {
        let order = DomainOrder {
            attempt: 2,
            since: Some(at(6)),
            ..DomainOrder::default()
        };
        let attempt = |s| {
            let pod = with(vec![ended("a", 3, "Error", s)]);
            exits(&pod, None, Some(&order), &Records::default()).reports[0].attempt
        };
        assert_eq!((attempt(5), attempt(8)), (1, 2));
    }
}

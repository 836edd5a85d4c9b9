//! Restarts of all containers of a pod by a user's rule on another container (KEP-5532), such as a
//! watcher that exits with a special code. The resulting end of the training container is no
//! failure.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::member::Member;
use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::workload::FailureAction;

use crate::facts::Facts;
use crate::objects::training::restart_by_rule;
use crate::pods::PodView;

/// Longest time for the kubelet to end the other containers: two seconds each, whatever their grace
/// period.
const SWEEP: TimeDelta = TimeDelta::seconds(30);

/// True if this exit restarts all containers of its pod, including the training container.
pub(super) fn sets_off(facts: &Facts<'_>, member: &Member, container: &str, code: i32) -> bool {
    let beside = container != facts.training(&member.group);
    let rule = |t| restart_by_rule(t, container, code);
    let action = facts.template(&member.group).and_then(rule);
    beside && action.is_some_and(FailureAction::restarts_pod)
}

/// True if a restart that began at `trigger` may have ended a container at `end`.
pub(super) fn may_have_ended(trigger: DateTime<Utc>, end: DateTime<Utc>) -> bool {
    end >= trigger && end - trigger <= SWEEP
}

/// Reports of exits that restarted all containers.
pub(super) fn reported<'s>(
    facts: &'s Facts<'_>,
    member: &'s Member,
    pod: &'s PodView,
) -> impl Iterator<Item = &'s Report> + 's {
    let ended = facts
        .pod_reports(pod)
        .filter(|r| r.kind == ReportKind::Exited);
    ended.filter(|r| sets_off(facts, member, &r.container, r.exit_code))
}

/// The exit that caused the last such restart in pod status.
pub(super) fn last_of<'s>(
    facts: &'s Facts<'_>,
    member: &'s Member,
    pod: &'s PodView,
) -> Option<&'s Report> {
    reported(facts, member, pod)
        .filter(|r| is_last(pod, r))
        .min_by_key(|r| r.time)
}

/// True if pod status shows one restart since this report.
fn is_last(pod: &PodView, report: &Report) -> bool {
    let shown = pod.containers.get(&report.container);
    shown.is_some_and(|c| c.restart_count == report.restarts.saturating_add(1))
}

/// True if such a restart ended the training container: its exit is the first after the trigger.
pub(super) fn is_swept(facts: &Facts<'_>, member: &Member, pod: &PodView, report: &Report) -> bool {
    trigger_of(facts, member, pod, report).is_some()
}

/// The exit that caused the restart by which the training container of a report ended.
pub(crate) fn trigger_of<'s>(
    facts: &'s Facts<'_>,
    member: &'s Member,
    pod: &'s PodView,
    report: &Report,
) -> Option<&'s Report> {
    reported(facts, member, pod).find(|trigger| {
        let after = |r: &Report| r.time >= trigger.time;
        let mut training = facts.reports(member, pod);
        may_have_ended(trigger.time, report.time)
            && !training.any(|r| after(r) && r.time < report.time)
    })
}

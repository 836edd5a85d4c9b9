//! Restarts of all containers of a pod that a container beside the training container sets off, by a
//! restart rule of the user's (KEP-5532): a watcher that ends with a code of its own. The kubelet
//! ends the training container then, which is no failure of its own.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::member::Member;
use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::workload::FailureAction;

use crate::facts::Facts;
use crate::objects::training::restart_by_rule;
use crate::pods::PodView;

/// How long the kubelet takes at most to end the other containers: two seconds for each, however
/// long their grace period.
const SWEEP: TimeDelta = TimeDelta::seconds(30);

/// Whether the end of a container with that code restarts all containers of its pod, the training
/// container among them.
pub(super) fn sets_off(facts: &Facts<'_>, member: &Member, container: &str, code: i32) -> bool {
    let beside = container != facts.training(&member.group);
    let rule = |t| restart_by_rule(t, container, code);
    let action = facts.template(&member.group).and_then(rule);
    beside && action.is_some_and(FailureAction::restarts_pod)
}

/// Whether a restart of all containers that began at the first time may be what ended a container at
/// the second.
pub(super) fn may_have_ended(trigger: DateTime<Utc>, end: DateTime<Utc>) -> bool {
    end >= trigger && end - trigger <= SWEEP
}

/// Reports of containers that set a restart of all off.
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

/// What set off the restart of all that the pod shows as the last one.
pub(super) fn last_of<'s>(
    facts: &'s Facts<'_>,
    member: &'s Member,
    pod: &'s PodView,
) -> Option<&'s Report> {
    reported(facts, member, pod)
        .filter(|r| is_last(pod, r))
        .min_by_key(|r| r.time)
}

/// Whether the container of a report has been restarted once since, as pod status shows it.
fn is_last(pod: &PodView, report: &Report) -> bool {
    let shown = pod.containers.get(&report.container);
    shown.is_some_and(|c| c.restart_count == report.restarts.saturating_add(1))
}

/// Whether a restart of all ended the training container of a report: it is the first to end after
/// a container set that off.
pub(super) fn is_swept(facts: &Facts<'_>, member: &Member, pod: &PodView, report: &Report) -> bool {
    trigger_of(facts, member, pod, report).is_some()
}

/// What set off the restart of all that ended the training container of a report.
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

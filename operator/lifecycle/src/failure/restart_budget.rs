//! The restart budget: charges, refunds, and restarts by kubelets that no agent has reported.

use std::mem::take;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::gangs::Gang;
use lockstep_api::ids::DomainKey;
use lockstep_api::member::Member;
use lockstep_api::words::{count, span};
use lockstep_api::workload::{Cause, CauseKind, FailureAction};

use super::detect::{RESTARTING_ALL, cause_of_kill, is_start_error};
use super::domain::{Consequence, DomainPass};
use super::policy::{Failure, Response, verdict};
use crate::cause::describe;
use crate::facts::{Facts, MemberObservation};
use crate::ledger::{DomainLedger, Ledger, OpenIncident};
use crate::pods::Termination;
use crate::waiting::dependents;
use crate::wake::Wake;

/// Domains that lose the same node within this time are charged once.
const ONE_LOSS: TimeDelta = TimeDelta::seconds(30);

/// A dependent can fail this long before the manager detects that its dependency is broken.
pub(crate) const DETECTED_LATER: TimeDelta = TimeDelta::seconds(30);

pub(crate) enum Unreported {
    /// No restarts, or all restarts are known.
    Nothing,
    OverBudget(Cause),
    Failure(Box<Failure>),
}

/// The last restart of a member's training container.
enum LastRestart {
    /// No restart, or a restart of an older attempt.
    Nothing,
    /// The report will follow: the agent observes an exit before the kubelet publishes it.
    Awaited,
    Ended(Box<Failure>),
}

impl DomainPass<'_> {
    /// Returns whether a restart was charged, or the consequence that replaces the incident. With a
    /// consequence, records the end of the run.
    ///
    /// `open`: the incident that is open or superseded. `tries`: consecutive counted restarts.
    pub(super) fn charge(
        &mut self,
        response: &Response,
        open: Option<&OpenIncident>,
        tries: i32,
    ) -> Result<bool, Consequence> {
        let charged = self.charge_budget(response, open, tries);
        if charged.is_err() {
            let (cause, action) = (&response.cause, response.action);
            self.ledger
                .record_interruption(self.facts, self.scope.key(), cause, action);
        }
        charged
    }

    fn charge_budget(
        &mut self,
        response: &Response,
        open: Option<&OpenIncident>,
        tries: i32,
    ) -> Result<bool, Consequence> {
        let policy = &self.facts.spec().failure_policy;
        let cause = describe(&response.cause);
        if response.action.ends_workload() {
            return Err(Consequence::FailWorkload(reasons::FAILURE_POLICY, cause));
        }
        // Until all members have recovered from a charged incident, further failures are free
        // (docs/decisions/0006).
        let paid = open.is_some_and(|i| i.counted) || self.has_paid_for_node(&response.cause);
        let charged = response.counted && !paid;
        if charged && !self.ledger.budget.charge(&policy.limits, self.facts.now) {
            return Err(self.over_budget(&response.cause));
        }
        let most = policy.in_place.max_tries + self.facts.view.settings().recreate_tries;
        if response.counted && !response.action.affects_single_pod() && tries >= most {
            let message = format!("{tries} consecutive restarts failed; {cause}");
            return Err(Consequence::ReleaseGang(
                reasons::RESTARTS_EXHAUSTED,
                message,
            ));
        }
        Ok(charged)
    }

    /// True if the loss of this node was recently charged to another domain.
    fn has_paid_for_node(&self, cause: &Cause) -> bool {
        let same = |other: &Cause| other.kind == CauseKind::NodeLost && other.node == cause.node;
        let domains = self.ledger.domains.values();
        let open = domains
            .flat_map(DomainLedger::open_causes)
            .filter(|(cause, _, counted)| *counted && same(cause))
            .map(|(_, detected_at, _)| detected_at);
        let history = self.ledger.history.iter();
        let closed = history
            .filter(|h| h.counted && same(&h.cause))
            .map(|h| h.time + TimeDelta::milliseconds(h.phases.detect_ms));
        let now = self.facts.now;
        cause.kind == CauseKind::NodeLost && open.chain(closed).any(|at| now - at <= ONE_LOSS)
    }

    pub fn over_budget(&self, cause: &Cause) -> Consequence {
        let limits = &self.facts.spec().failure_policy.limits;
        let failures = self.ledger.budget.used(limits, self.facts.now) + 1;
        let message = format!(
            "restart limit reached: {} within {} (failurePolicy.limits.maxRestarts is {}); {}",
            count(failures, "counted failure"),
            span(limits.window_seconds),
            limits.max_restarts,
            describe(cause)
        );
        Consequence::FailWorkload(reasons::RESTART_LIMIT_EXCEEDED, message)
    }

    /// Corrects the cause if pod status now shows that the kubelet or an eviction ended the pod.
    /// Refunds the charge, unless the pod exceeded its own deadline or limits.
    pub fn correct_cause(&mut self) {
        let (facts, key, members) = (self.facts, self.key(), &self.scope.domain.members);
        let entry = self.entry_mut();
        let incident = entry
            .incident
            .as_mut()
            .map(|i| (&mut i.cause, &mut i.counted, i.detected_at));
        let replacement = entry
            .replacement
            .as_mut()
            .map(|r| (&mut r.cause, &mut r.counted, r.detected_at));
        let mut refunded = Vec::new();
        for (cause, counted, detected_at) in incident.into_iter().chain(replacement) {
            let Some((corrected, disrupted)) = cause_of_kill(facts, members, cause) else {
                continue;
            };
            *cause = corrected;
            if disrupted && take(counted) {
                refunded.push(detected_at);
            }
        }
        for charged_at in refunded {
            refund_charge(self.ledger, key, charged_at);
        }
    }

    /// Counts restarts by kubelets since the last pass, from restart counts in pod status.
    pub fn count_kubelet_restarts(
        &mut self,
        members: &[(&Member, Option<MemberObservation<'_>>)],
    ) -> Unreported {
        let count = self.restart_count();
        let domain = self.entry_mut();
        let new = count - domain.restarts_seen;
        if new <= 0 {
            domain.restarts_seen = count;
            return Unreported::Nothing;
        }
        let (attempt, healthy_since) = (domain.attempt, domain.healthy_since);
        let (mut latest, mut awaited): (Option<Failure>, bool) = (None, false);
        for observed in members.iter().filter_map(|(_, pod)| pod.as_ref()) {
            match last_restart(observed, attempt, &mut self.wake) {
                LastRestart::Nothing => {}
                LastRestart::Awaited => awaited = true,
                LastRestart::Ended(failure) => {
                    let later = |l: &Failure| failure.cause.time >= l.cause.time;
                    if !is_start_error(self.facts, &failure) && latest.as_ref().is_none_or(later) {
                        latest = Some(*failure);
                    }
                }
            }
        }
        let Some(failure) = latest else {
            return Unreported::Nothing;
        };
        let verdict = verdict(self.facts.spec(), &failure);
        let is_task = is_end_of_task(self.facts, &failure);
        let ends_attempt = !is_task && !verdict.action.affects_single_pod();
        let ended_since = |since| failure.cause.time > since;
        if awaited && !(ends_attempt && healthy_since.is_some_and(ended_since)) {
            // The known exit can be counted already.
            return Unreported::Nothing;
        }
        self.entry_mut().restarts_seen = count;
        if is_task {
            return Unreported::Nothing;
        }
        if ends_attempt {
            return Unreported::Failure(Box::new(failure));
        }
        let (facts, budget) = (self.facts, &mut self.ledger.budget);
        budget.total += new;
        budget.in_place += new;
        let limits = &facts.spec().failure_policy.limits;
        let within_budget = !verdict.counted || (0..new).all(|_| budget.charge(limits, facts.now));
        let cause = Cause {
            rule: verdict.rule_name(),
            ..failure.cause.clone()
        };
        let (key, recovered_at) = (self.key(), within_budget.then_some(facts.now));
        self.ledger.record_kubelet_restarts(
            key,
            &cause,
            verdict.action,
            verdict.counted,
            recovered_at,
        );
        if within_budget {
            Unreported::Nothing
        } else {
            Unreported::OverBudget(cause)
        }
    }
}

pub(super) fn refund(ledger: &mut Ledger, domain: &DomainKey, incident: &mut OpenIncident) {
    if take(&mut incident.counted) {
        refund_charge(ledger, domain, incident.detected_at);
    }
}

pub(super) fn refund_charge(ledger: &mut Ledger, domain: &DomainKey, charged_at: DateTime<Utc>) {
    if let Some(domain) = ledger.domains.get_mut(domain) {
        domain.tries = (domain.tries - 1).max(0);
        domain.uncounted_tries = domain.uncounted_tries.saturating_add(1);
    }
    ledger.budget.refund(charged_at);
}

/// Refunds the dependents of a gang that has failed: its failure may need the budget.
pub(super) fn refund_dependents(facts: &Facts<'_>, ledger: &mut Ledger, gang: &Gang) {
    let message = format!("group {} in dependsOn restarts", gang.template);
    for dependent in dependents(facts, ledger, gang) {
        for domain in &dependent.domains {
            refund_earlier(ledger, &domain.key, facts.now, &message);
        }
    }
}

/// Refunds failures of a dependent that its dependency, broken since this time, has caused.
pub(super) fn refund_earlier(
    ledger: &mut Ledger,
    key: &DomainKey,
    since: DateTime<Utc>,
    message: &str,
) {
    let from = since - DETECTED_LATER;
    let explained = |cause: &Cause| Cause {
        kind: CauseKind::DependencyBroken,
        message: format!("{message}; {}", describe(cause)),
        ..cause.clone()
    };
    let open = ledger.domain(key).and_then(|d| d.incident.clone());
    if let Some(mut incident) = open.filter(|i| i.counted && i.detected_at >= from) {
        refund(ledger, key, &mut incident);
        incident.cause = explained(&incident.cause);
        if let Some(domain) = ledger.domains.get_mut(key) {
            domain.incident = Some(incident);
        }
    }
    for entry in &mut ledger.history {
        let detected_at = entry.time + TimeDelta::milliseconds(entry.phases.detect_ms);
        if *key == *entry.domain && entry.counted && detected_at >= from {
            entry.counted = false;
            entry.cause = explained(&entry.cause);
            ledger.budget.refund(detected_at);
        }
    }
}

fn last_restart(observed: &MemberObservation<'_>, attempt: i64, wake: &mut Wake) -> LastRestart {
    let (facts, training) = (observed.facts, observed.training());
    let Some(container) = observed.trainer() else {
        return LastRestart::Nothing;
    };
    let Some(last) = &container.last else {
        return LastRestart::Nothing;
    };
    let pod_restart = observed
        .last_pod_restart()
        .filter(|_| last.reason == RESTARTING_ALL);
    // The kubelet shows no id after a restart of the whole pod.
    let report = pod_restart.or_else(|| match &last.id {
        Some(id) => observed.report_of(training, Some(id)),
        None => observed.report_where(training, |r| r.restarts == container.restart_count - 1),
    });
    if report.is_some_and(|r| r.attempt < attempt) {
        return LastRestart::Nothing;
    }
    if let Some(exit) = pod_restart {
        return LastRestart::Ended(Box::new(observed.reported_failure(exit)));
    }
    // After a restart of the whole pod, the pod's condition has the only time until the container
    // runs. Without the report on the exit before, the agent may report none.
    let before = container.restart_count - 2;
    let reports = || {
        before < 0
            || observed
                .report_where(training, |r| r.restarts >= before)
                .is_some()
    };
    let restarted_at = || observed.pod.restarted_at().filter(|_| reports());
    let ended_by = last
        .finished_at
        .or(container.running_since())
        .or_else(restarted_at);
    if report.is_none() && observed.has_agent() {
        let grace = facts.view.settings().report_grace;
        // With a clock far ahead, the time of the exit is unknown.
        let deadline = ended_by.filter(|at| *at < facts.now + grace);
        if deadline.is_some_and(|at| !facts.due(at + grace).passed(wake)) {
            return LastRestart::Awaited;
        }
    }
    let last = Termination {
        finished_at: ended_by,
        ..last.clone()
    };
    LastRestart::Ended(Box::new(observed.exit_failure(training, &last, report)))
}

/// True if the exit ended one task and the user's rule starts the next. If the rule restarts all
/// containers and the code is unknown, the exit may be a failure but is not charged.
fn is_end_of_task(facts: &Facts<'_>, failure: &Failure) -> bool {
    let rule = facts.after_success(&failure.member.group);
    let hidden = failure.masked && rule.is_some_and(FailureAction::restarts_pod);
    failure.cause.exit_code == Some(0) || hidden
}

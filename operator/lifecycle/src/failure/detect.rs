//! Failures of a member, detected from its pod's status and the reports of its agent.

use std::cmp::Reverse;

use chrono::{DateTime, Utc};
use lockstep_api::Reach;
use lockstep_api::condition::types;
use lockstep_api::member::Member;
use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::workload::{Cause, CauseKind};

use super::policy::{Failure, FailureImpact, verdict};
use crate::facts::{Facts, MemberObservation, Standing, may_end};
use crate::ledger::DomainLedger;
use crate::pods::{ContainerState, ContainerView, PodPhase, PodView, Termination, bare_id};
use crate::wake::Wake;
use lockstep_api::member_pod::looks_killed;

/// Reason of containers that the kubelet killed to restart the whole pod.
pub(crate) const RESTARTING_ALL: &str = "RestartingAllContainers";
/// Reasons of exits whose true code is lost: the container was removed before pod status or the
/// agent had the code.
const MASKING: [&str; 2] = [RESTARTING_ALL, "ContainerStatusUnknown"];
/// Runtimes' reasons for containers that did not start.
const START_REASONS: [&str; 2] = ["StartError", "ContainerCannotRun"];
/// Reasons of pods that the kubelet ended: eviction, shutdown of the node, admission of a critical
/// pod, the pod's own `activeDeadlineSeconds`. Condition `DisruptionTarget` distinguishes the node's
/// reasons from the pod's own: an eviction for a limit of the pod, as of an emptyDir, has none
/// (`pkg/kubelet/eviction/eviction_manager.go`).
const KUBELET_REASONS: [&str; 4] = ["Evicted", "Terminated", "Preempting", "DeadlineExceeded"];

impl MemberObservation<'_> {
    /// A failure of the pod at the current attempt. A rejection by the kubelet is a failure of the
    /// placement instead.
    pub fn failure(&self, domain: &DomainLedger) -> Option<Failure> {
        self.pod_failure().or_else(|| self.exit_at_attempt(domain))
    }

    /// The pod is lost, deleted or failed.
    pub fn pod_failure(&self) -> Option<Failure> {
        let (facts, pod) = (self.facts, self.pod);
        let node = pod.node.as_deref()?;
        let disrupted = pod.condition(types::DISRUPTION_TARGET);
        let disruption = disrupted.map(|c| (c.reason.clone(), c.message.clone()));
        let (kind, reason, message) = if pod.phase == PodPhase::Failed && !ended_by_deletion(pod) {
            if !pod.has_run() {
                return None;
            }
            if !ended_by_kubelet(pod) && disrupted.is_none() {
                let exit = self.failed_exit();
                if exit.is_some() {
                    return exit;
                }
            }
            // If the kubelet ended the pod in favour of another pod, only the condition has a
            // reason.
            let (reason, message) = disruption
                .filter(|_| pod.reason.is_empty())
                .unwrap_or_else(|| (pod.reason.clone(), pod.message.clone()));
            (CauseKind::PodFailed, reason, message)
        } else if pod.terminating() {
            let (reason, message) = disruption.unwrap_or_default();
            (CauseKind::PodDeleted, reason, message)
        } else if facts.standing(pod) == Standing::Lost {
            let state = match facts.node_state(node).reach {
                Reach::Gone => "was deleted",
                Reach::OutOfService => "is out of service",
                Reach::Responding | Reach::Silent { .. } => "is not ready",
            };
            (
                CauseKind::NodeLost,
                "NodeLost".into(),
                format!("node {node} {state}"),
            )
        } else {
            return None;
        };
        let uncounted = !kind.is_counted() || disrupted.is_some();
        let ended_at = first_end(pod).filter(|_| kind == CauseKind::PodFailed);
        let silent_since = facts
            .view
            .nodes()
            .get(node)
            .and_then(|n| n.not_ready_since)
            .filter(|_| kind == CauseKind::NodeLost);
        let began_at = pod
            .deletion_requested_at
            .or(pod.deletion_timestamp)
            .or(silent_since)
            .into_iter()
            .chain(ended_at)
            .min();
        let time = began_at.map_or(facts.now, |t| t.min(facts.now));
        let cause = Cause {
            pod: pod.name.clone(),
            node: node.to_owned(),
            reason,
            message,
            ..Cause::new(kind, time)
        };
        Some(Failure {
            uncounted,
            usable: false,
            ..self.failure_by(cause)
        })
    }

    /// Time until which pod status can explain an exit that looks like a kill. While it shows the
    /// container as running, the kubelet may be ending the pod. Pod status shows the failure of a
    /// single container within two seconds.
    fn confirmed_by(&self, r: &Report) -> Option<DateTime<Utc>> {
        let shown = self.trainer()?;
        let runs = shown.running() && shown.id.as_deref().map(bare_id) == Some(&r.container_id);
        let open = runs && self.pod.is_live();
        // The supervisor observes its child directly. Only a forwarded signal can come from the
        // kubelet.
        let of_child = r.supervised && r.exit_code != 143;
        (open && looks_killed(r.exit_code, &r.reason) && !of_child)
            .then(|| r.time.min(self.facts.now) + self.facts.view.settings().status_grace)
    }

    /// True if the pod of a charged exit may still report that its node ended it. A deletion of the
    /// pod could remove that report unread.
    pub fn may_refund(&self, charged: &Cause, wake: &mut Wake) -> bool {
        charged.pod == self.pod.name
            && self.training_reports().any(|r| {
                let by = self.confirmed_by(r);
                by.is_some_and(|by| !self.facts.due(by).passed(wake))
            })
    }

    /// The exit that failed the pod: of the training container, else of an init container that
    /// prevented its start, else the first of another container.
    fn failed_exit(&self) -> Option<Failure> {
        let training = self.training();
        let began = self.trainer().is_some_and(ContainerView::started);
        let ended = self.pod.containers.iter().filter_map(|(name, c)| {
            let exit = c.terminated().filter(|t| t.exit_code != 0)?;
            // No init container prevented the start of a started training container.
            let rank = match c.init {
                _ if name == training => 0,
                true if began => return None,
                true => 1,
                false => 2,
            };
            Some((rank, exit.finished_at, name, exit))
        });
        let (_, _, name, exit) = ended.min_by_key(|(rank, at, name, _)| (*rank, *at, *name))?;
        let report = self.report_of(name, exit.id.as_deref());
        Some(Failure {
            usable: false,
            ..self.exit_failure(name, exit, report)
        })
    }

    /// A failed exit of the training container at the current attempt, from the agent or pod
    /// status.
    pub fn exit_at_attempt(&self, domain: &DomainLedger) -> Option<Failure> {
        if let Some(reported) = self.worst_report(|attempt| attempt >= domain.attempt) {
            return Some(reported);
        }
        let container = self.trainer()?;
        let down = container.terminated().filter(|t| t.exit_code != 0)?;
        let report = self.report_of(self.training(), down.id.as_deref());
        if report.is_some_and(|r| r.attempt < domain.attempt || r.kind == ReportKind::Stopped) {
            return None;
        }
        // During an incident, only a container that has arrived at its attempt can fail at it.
        if domain.restart_in_place(self.member).is_some()
            && !self.is_container_at(domain.attempt, container)
        {
            return None;
        }
        Some(self.exit_failure(self.training(), down, report))
    }

    /// A delayed report on the previous attempt, which belongs to the open incident.
    pub fn late_exit(&self, attempt: i64) -> Option<Failure> {
        self.worst_report(|at| at == attempt - 1)
    }

    /// The earliest failure with the most severe action, from the agent's reports on some attempts.
    /// Exits that follow from a restart of the whole pod are no failures.
    fn worst_report(&self, attempts: impl Fn(i64) -> bool) -> Option<Failure> {
        let spec = self.facts.spec();
        self.training_reports()
            .filter(|r| attempts(r.attempt) && r.kind == ReportKind::Exited && r.exit_code != 0)
            .filter(|r| self.pod_restart_before(r).is_none())
            .map(|r| self.reported_failure(r))
            .min_by_key(|f| (Reverse(verdict(spec, f).action.severity()), f.cause.time))
    }

    pub fn reported_failure(&self, r: &Report) -> Failure {
        let exit = Termination {
            exit_code: r.exit_code,
            reason: r.reason.clone(),
            message: String::new(),
            finished_at: Some(r.time),
            id: Some(r.container_id.clone()),
        };
        Failure {
            confirmed_by: self.confirmed_by(r),
            ..self.exit_failure(&r.container, &exit, Some(r))
        }
    }

    pub fn exit_failure(
        &self,
        container: &str,
        exit: &Termination,
        report: Option<&Report>,
    ) -> Failure {
        let pod = self.pod;
        let (code, reason, time) = match report {
            Some(r) => (r.exit_code, r.reason.clone(), r.time),
            None => (
                exit.exit_code,
                exit.reason.clone(),
                exit.finished_at.unwrap_or(self.facts.now),
            ),
        };
        // A container that restarts the whole pod makes the kubelet kill its other containers with 137.
        let last = self.trainer().and_then(|c| c.last.as_ref());
        let swept = last.is_some_and(|l| l.reason == RESTARTING_ALL && l.id == exit.id);
        let masked = code == 137
            && reason != "OOMKilled"
            && (MASKING.contains(&reason.as_str()) || swept || pod.restarts_all());
        let hangs = report.is_some_and(|r| r.supervised && r.reason == CauseKind::Hang.as_str());
        let kind = if hangs {
            CauseKind::Hang
        } else {
            CauseKind::ContainerExit
        };
        // With the true code, the message of the masked exit is wrong.
        let is_wrong = report.is_some() && exit.reason == RESTARTING_ALL;
        let shown = (!is_wrong).then_some(&exit.message);
        let reported = report.map(|r| &r.message).filter(|m| !m.is_empty());
        let cause = Cause {
            pod: pod.name.clone(),
            node: pod.node.clone().unwrap_or_default(),
            container: container.to_owned(),
            // After a hang, the supervisor's own signal determines the code.
            exit_code: (!hangs).then_some(code),
            reason,
            message: reported.or(shown).cloned().unwrap_or_default(),
            ..Cause::new(kind, time)
        };
        Failure {
            masked,
            ..self.failure_by(cause)
        }
    }

    fn failure_by(&self, cause: Cause) -> Failure {
        let conditions = self
            .pod
            .conditions
            .iter()
            .map(|(t, c)| (t.clone(), c.status.clone()));
        Failure {
            member: self.member.clone(),
            pod_uid: Some(self.pod.uid.clone()),
            cause,
            usable: true,
            masked: false,
            uncounted: false,
            confirmed_by: None,
            impact: FailureImpact::TrainingContainer,
            conditions: conditions.collect(),
        }
    }

    /// The error that prevented the start of the training container, unless a rule matches it. The
    /// program, device or mount is missing, so the workload's code has not run.
    pub fn start_error(&self) -> Option<Failure> {
        let container = self.trainer()?;
        let waits = matches!(container.state, ContainerState::Waiting { .. });
        let last = container.last.as_ref().filter(|_| waits);
        let exit = container.terminated().or(last)?;
        let failure = self.exit_failure(self.training(), exit, None);
        is_start_error(self.facts, &failure).then_some(failure)
    }

    /// Exits of other containers that are failures of the member: a rule names the container, or
    /// the exit restarts the whole pod. Restart policies handle all other exits.
    ///
    /// `restarting`: an incident restarts the pod in place.
    pub fn exits_beside_training(&self, domain: &DomainLedger, restarting: bool) -> Vec<Failure> {
        let mut out = if self.has_agent() {
            self.reported_beside_training(domain)
        } else if restarting {
            Vec::new()
        } else {
            self.shown_beside_training(domain)
        };
        let spec = self.facts.spec();
        out.retain(|f| {
            f.impact == FailureImpact::TrainingContainer || verdict(spec, f).rule.is_some()
        });
        out
    }

    fn impact(&self, container: &str, code: i32) -> FailureImpact {
        if self.restarts_pod(container, code) {
            FailureImpact::TrainingContainer
        } else {
            FailureImpact::Container
        }
    }

    /// From agents' reports, which contain the attempt.
    fn reported_beside_training(&self, domain: &DomainLedger) -> Vec<Failure> {
        let training = self.training();
        let reports = self.reports.iter();
        reports
            .filter(|r| r.container != training && r.attempt >= domain.attempt)
            .filter(|r| r.kind == ReportKind::Exited && r.exit_code != 0)
            .map(|r| Failure {
                impact: self.impact(&r.container, r.exit_code),
                confirmed_by: None,
                ..self.reported_failure(r)
            })
            .collect()
    }

    /// From pod status, without an agent. A restart of the gang then replaces the pod, so its
    /// status shows no older attempt.
    fn shown_beside_training(&self, domain: &DomainLedger) -> Vec<Failure> {
        let training = self.training();
        let mut out = Vec::new();
        let containers = self.pod.containers.iter();
        for (name, container) in containers.filter(|(name, _)| *name != training) {
            let Some(exit) = container.terminated().or(container.last.as_ref()) else {
                continue;
            };
            let reported = self.reports.iter().any(|r| {
                let id = exit.id.as_deref().map(bare_id);
                id == Some(&r.container_id) && r.attempt < domain.attempt
            });
            let ended = exit.exit_code == 0 && exit.reason != "OOMKilled";
            if reported || ended || looks_killed(exit.exit_code, &exit.reason) {
                continue;
            }
            out.push(Failure {
                impact: self.impact(name, exit.exit_code),
                ..self.exit_failure(name, exit, None)
            });
        }
        out
    }
}

/// True if the training container ended because another container restarted the whole pod.
pub(crate) fn is_consequence(failure: &Failure, beside_training: &[Failure]) -> bool {
    let own = failure.cause.exit_code.is_some() && failure.usable;
    let mut others = beside_training.iter();
    own && others.any(|f| {
        f.impact == FailureImpact::TrainingContainer && may_end(f.cause.time, failure.cause.time)
    })
}

/// True if a pod failed because of its deletion. Its first failed status can follow the signal of
/// the deletion. If the time of the deletion is unknown, a signal is taken for that of the deletion.
fn ended_by_deletion(pod: &PodView) -> bool {
    let after_request = |t: &Termination| match pod.deletion_requested_at {
        Some(requested_at) => t.finished_at.is_none_or(|at| at >= requested_at),
        None => looks_killed(t.exit_code, &t.reason),
    };
    let mut ends = pod.containers.values().filter_map(|c| c.terminated());
    pod.terminating() && ends.all(|t| t.exit_code == 0 || after_request(t))
}

/// True if the kubelet ended the pod: the exit codes of its containers are then no cause.
fn ended_by_kubelet(pod: &PodView) -> bool {
    KUBELET_REASONS.contains(&pod.reason.as_str())
}

fn first_end(pod: &PodView) -> Option<DateTime<Utc>> {
    let regular = pod.containers.values().filter(|c| !c.init);
    regular.filter_map(|c| c.terminated()?.finished_at).min()
}

/// The cause of an exit by a signal, if the pod reports that its kubelet or an eviction ended it,
/// and whether that was a disruption instead of the pod's own fault. Kubelets report this after the
/// last container has ended, long after the agent's report on the first.
pub(crate) fn cause_of_kill(
    facts: &Facts<'_>,
    members: &[Member],
    cause: &Cause,
) -> Option<(Cause, bool)> {
    if cause.kind != CauseKind::ContainerExit
        || !cause
            .exit_code
            .is_some_and(|code| looks_killed(code, &cause.reason))
    {
        return None;
    }
    let mut pods = members.iter().flat_map(|m| facts.pods_of(m));
    let pod = pods.find(|p| p.name == cause.pod)?;
    let disrupted = pod.condition(types::DISRUPTION_TARGET);
    let by_kubelet = pod.phase == PodPhase::Failed && ended_by_kubelet(pod);
    // An API-initiated eviction sets the condition before the first signal.
    let before = disrupted
        .and_then(|c| c.since)
        .is_some_and(|at| at <= cause.time);
    if !by_kubelet && !before {
        return None;
    }
    let (reason, message) = disrupted
        .filter(|_| !by_kubelet)
        .map_or((&pod.reason, &pod.message), |c| (&c.reason, &c.message));
    let adjusted = Cause {
        kind: if by_kubelet {
            CauseKind::PodFailed
        } else {
            CauseKind::PodDeleted
        },
        reason: reason.clone(),
        message: message.clone(),
        rule: String::new(),
        ..cause.clone()
    };
    Some((adjusted, disrupted.is_some()))
}

pub(crate) fn is_start_error(facts: &Facts<'_>, failure: &Failure) -> bool {
    failure.cause.exit_code == Some(128)
        && START_REASONS.contains(&failure.cause.reason.as_str())
        && verdict(facts.spec(), failure).rule.is_none()
}

/// A member that its node did not start. The workload has not failed.
pub(crate) fn start_failure(
    member: &Member,
    node: &str,
    reason: &str,
    message: &str,
    now: DateTime<Utc>,
) -> Failure {
    let failure = vanished(member, node, now);
    let cause = Cause {
        kind: CauseKind::PodFailed,
        reason: reason.to_owned(),
        message: format!("member {member}: {message}"),
        ..failure.cause
    };
    Failure { cause, ..failure }
}

pub(crate) fn vanished(member: &Member, node: &str, now: DateTime<Utc>) -> Failure {
    Failure {
        member: member.clone(),
        pod_uid: None,
        cause: Cause {
            node: node.to_owned(),
            message: format!("the pod of member {member} is gone"),
            ..Cause::new(CauseKind::PodDeleted, now)
        },
        usable: false,
        masked: false,
        uncounted: true,
        confirmed_by: None,
        impact: FailureImpact::TrainingContainer,
        conditions: Vec::new(),
    }
}

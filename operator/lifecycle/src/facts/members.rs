use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use lockstep_api::condition::types;
use lockstep_api::gangs::Gang;
use lockstep_api::member::Member;
use lockstep_api::membership::Membership;
use lockstep_api::names::DEFAULT_SCHEDULER;
use lockstep_api::node_agent::{MemberProgress, Report, ReportKind};
use lockstep_api::workload::FailureAction;

use super::{Facts, PlacementState};
use crate::arrivals::Arrival;
use crate::ledger::{DomainLedger, Ledger, OpenIncident};
use crate::objects::training::{restart_by_rule, training_container};
use crate::pods::{ContainerView, PodPhase, PodView, bare_id};

/// Longest time in which the kubelet ends the other containers of a restarted pod: two seconds
/// each, whatever their grace period.
const POD_RESTART_TAKES: TimeDelta = TimeDelta::seconds(30);

/// A member's pod, with the reports and the last arrival from the agent of its node.
pub(crate) struct MemberObservation<'o> {
    pub facts: &'o Facts<'o>,
    pub member: &'o Member,
    pub pod: &'o PodView,
    /// Reports on all containers.
    pub reports: Vec<&'o Report>,
    pub arrival: Option<&'o Arrival<'o>>,
}

impl<'a> Facts<'a> {
    pub fn trainer<'p>(&self, member: &Member, pod: &'p PodView) -> Option<&'p ContainerView> {
        pod.containers.get(self.training(&member.group))
    }

    pub fn training(&self, group: &str) -> &'a str {
        self.training.get(group).copied().unwrap_or_default()
    }

    /// Sum of the limits of a member's containers.
    pub fn accelerators(&self, group: &str) -> i64 {
        let Some(template) = self.template(group).and_then(|t| t.spec.as_ref()) else {
            return 0;
        };
        let of = |container| self.view.settings().accelerators_of(container);
        let containers = template.containers.iter();
        containers.map(of).fold(0, i64::saturating_add)
    }

    pub fn observe<'o>(&'o self, member: &'o Member, pod: &'o PodView) -> MemberObservation<'o> {
        let node = pod.node.as_deref();
        let reports = self.reports.get(pod.uid.as_str()).into_iter().flatten();
        let of_node = reports.filter(|(reporter, _)| node == Some(*reporter));
        MemberObservation {
            facts: self,
            member,
            pod,
            reports: of_node.map(|(_, report)| *report).collect(),
            arrival: self.arrivals.of(pod),
        }
    }

    pub fn template(&self, group: &str) -> Option<&'a PodTemplateSpec> {
        let groups = &self.view.spec().groups;
        let group = groups.iter().find(|g| g.name == group)?;
        Some(&group.template.0)
    }

    /// kube-scheduler places no group whose members name different schedulers. A template with a
    /// group of its own keeps that group. Basic gangs have none: their pods are independent.
    pub fn has_native_group(&self, gang: &Gang) -> bool {
        let names: BTreeSet<&str> = gang.members().map(|m| m.group.as_str()).collect();
        let specs: Vec<_> = names
            .into_iter()
            .filter_map(|group| self.template(group))
            .filter_map(|t| t.spec.as_ref())
            .collect();
        let schedulers: BTreeSet<&str> = specs
            .iter()
            .map(|spec| spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER))
            .collect();
        !gang.basic
            && schedulers.len() == 1
            && specs.iter().all(|spec| spec.scheduling_group.is_none())
    }

    /// Whether kube-scheduler can place the pods of an unplaced gang; an error says what prevents it.
    /// `None` if it does not have to place them.
    pub fn native_placement(
        &self,
        ledger: &Ledger,
        gang: &Gang,
    ) -> Option<Result<(), &'static str>> {
        let entry = ledger.gang(&gang.key).filter(|e| e.may_have_pods())?;
        let unplaced = matches!(
            self.placement_state(&gang.key, entry),
            PlacementState::Unplaced
        );
        if !unplaced || !self.view.kube_scheduler_places() || ledger.is_done(gang) {
            return None;
        }
        Some(if self.spec().scheduling.topology.is_some() {
            Err("scheduling.topology is not supported by this backend: remove it")
        } else if gang.basic {
            Ok(())
        } else if self.view.native().supported == Some(false) {
            Err(
                "the API server does not support native groups: serve scheduling.k8s.io/v1beta1 and enable feature \
                 gate GenericWorkload",
            )
        } else if !self.has_native_group(gang) {
            Err("the templates of a gang need one schedulerName and no schedulingGroup")
        } else {
            Ok(())
        })
    }

    /// If a pod is being deleted or disrupted, an exit with 0 follows SIGTERM and is no success.
    pub fn succeeded(&self, member: &Member, pod: &PodView) -> bool {
        let zero = self
            .trainer(member, pod)
            .and_then(ContainerView::terminated)
            .is_some_and(|t| t.exit_code == 0 && pod.phase != PodPhase::Failed)
            && self.after_success(&member.group).is_none();
        let ended = zero && !pod.restarts_all() || pod.phase == PodPhase::Succeeded;
        ended && !pod.terminating() && pod.condition(types::DISRUPTION_TARGET).is_none()
    }

    /// Action of the user's own rules for an exit of the training container with 0. Such an exit
    /// ends one task and is no success (KEP-5307).
    pub fn after_success(&self, group: &str) -> Option<FailureAction> {
        let template = self.template(group)?;
        restart_by_rule(template, training_container(template)?, 0)
    }

    /// Members of an elastic gang that start or stop running with its placement. Empty if nothing
    /// changes, or if too few members are placed.
    pub fn changed_members<'g>(
        &self,
        ledger: &Ledger,
        gang: &'g Gang,
        was: &Membership<'_>,
    ) -> Vec<(&'g Member, bool)> {
        if gang.basic || self.placement(ledger, &gang.key).is_none() {
            return Vec::new();
        }
        let assigned = self.assigned_nodes(&gang.key);
        let mut out = Vec::new();
        let (mut count, mut differs) = (0_usize, false);
        for member in gang.members() {
            let finished = ledger.completed.contains(member) && was.contains(member);
            // A degrading gang keeps its ranks.
            let kept = gang.degrades() && ledger.is_under_way(gang) && was.contains(member);
            let runs = assigned.contains_key(member) || finished || kept;
            count += usize::from(runs);
            differs |= runs != was.contains(member);
            out.push((member, runs));
        }
        let enough = count >= gang.min_count.max(0) as usize;
        if enough && differs { out } else { Vec::new() }
    }

    /// The last report of the pod's training process, also of an agent that is away.
    pub fn progress_of(&self, pod: &PodView) -> Option<&'a MemberProgress> {
        let agent = self.view.agents().get(pod.node.as_deref()?)?;
        let mut reported = agent.status.progress.iter();
        reported.find(|p| pod.uid == *p.pod_uid)
    }

    pub fn running(&self, member: &Member, pod: &PodView) -> bool {
        pod.phase == PodPhase::Running
            && self
                .trainer(member, pod)
                .is_some_and(ContainerView::running)
    }
}

impl<'o> MemberObservation<'o> {
    pub fn training(&self) -> &'o str {
        self.facts.training(&self.member.group)
    }

    pub fn trainer(&self) -> Option<&'o ContainerView> {
        self.pod.containers.get(self.training())
    }

    pub fn training_reports(&self) -> impl Iterator<Item = &'o Report> {
        let training = self.training();
        let reports = self.reports.iter().copied();
        reports.filter(move |r| r.container == training)
    }

    /// True if an agent on the pod's node can report.
    pub fn has_agent(&self) -> bool {
        let node = self.pod.node.as_deref();
        node.is_some_and(|n| self.facts.agent(n).is_some())
    }

    /// The latest attempt that the pod or its agent knows.
    pub fn highest_attempt(&self) -> i64 {
        let reported = self.reports.iter().map(|r| r.attempt);
        let attempts = reported.chain(self.arrival.map(|a| a.attempt));
        attempts.fold(self.pod.identity.attempt, i64::max)
    }

    /// The report on a container's exit. The supervisor reports the exit of each attempt. The agent
    /// reports the exit of the container, unless the supervisor has already reported it.
    pub fn report_of(&self, container: &str, id: Option<&str>) -> Option<&'o Report> {
        let id = bare_id(id?);
        self.report_where(container, |r| r.container_id == id)
    }

    /// Ignores outdated reports on a supervised container, which has arrived at a later attempt.
    pub fn report_where(
        &self,
        container: &str,
        is_relevant: impl Fn(&Report) -> bool,
    ) -> Option<&'o Report> {
        let is_outdated = |r: &Report| {
            let later = |a: &Arrival<'_>| a.attempt > r.attempt && a.restarts == r.restarts;
            r.supervised && self.arrival.is_some_and(later)
        };
        let reports = self.reports.iter().copied();
        reports
            .filter(|r| r.container == container && is_relevant(r) && !is_outdated(r))
            .max_by_key(|r| (!r.supervised, r.attempt))
    }

    /// True if the training container in pod status arrived at this attempt or a later one, or was
    /// started later. Pod status can lag behind the agent.
    pub fn is_container_at(&self, attempt: i64, shown: &ContainerView) -> bool {
        let Some(arrival) = self.arrival.filter(|a| a.attempt >= attempt) else {
            return false;
        };
        let arrived = arrival.container;
        if shown.runtime_id().map(bare_id) == Some(arrived)
            || shown.restart_count > arrival.restarts
        {
            return true;
        }
        // A kubelet that lost its disk counts restarts from zero, so times decide. Pod status has
        // whole seconds.
        let since = shown.running_since().map(|at| at + TimeDelta::seconds(1));
        let mut reports = self.training_reports();
        reports.any(|r| r.container_id == arrived && since.is_some_and(|since| since > r.time))
    }

    /// True if the pod has arrived at this attempt or a later one and, if supervised, its container
    /// has not ended since.
    pub fn is_at(&self, attempt: i64) -> bool {
        let arrival = self.arrival.filter(|a| a.attempt >= attempt);
        arrival.is_some_and(|a| !self.pod.is_supervised() || !self.has_ended(a.container))
    }

    fn has_ended(&self, container_id: &str) -> bool {
        let mut reports = self.training_reports();
        reports.any(|r| !r.supervised && r.container_id == container_id)
    }

    /// True if a user's rule restarts all containers of the pod at this exit (KEP-5532). The
    /// resulting exit of training is no failure.
    pub fn restarts_pod(&self, container: &str, code: i32) -> bool {
        let rule = |template| restart_by_rule(template, container, code);
        let action = self.facts.template(&self.member.group).and_then(rule);
        container != self.training() && action.is_some_and(FailureAction::restarts_pod)
    }

    /// Reported exits that restarted the pod.
    fn pod_restarts(&self) -> impl Iterator<Item = &'o Report> {
        let reports = self.reports.iter().copied();
        reports.filter(|r| {
            r.kind == ReportKind::Exited && self.restarts_pod(&r.container, r.exit_code)
        })
    }

    pub fn last_pod_restart(&self) -> Option<&'o Report> {
        let is_last = |r: &&Report| {
            let shown = self.pod.containers.get(&r.container);
            shown.is_some_and(|c| c.restart_count == r.restarts.saturating_add(1))
        };
        self.pod_restarts().filter(is_last).min_by_key(|r| r.time)
    }

    /// The exit that caused the pod restart by which the container of this report ended, if any.
    pub fn pod_restart_before(&self, report: &Report) -> Option<&'o Report> {
        self.pod_restarts().find(|cause| {
            let between = |r: &Report| r.time >= cause.time && r.time < report.time;
            may_end(cause.time, report.time) && !self.training_reports().any(between)
        })
    }
}

/// True if a pod restart that began at `start` can have ended a container at `end`.
pub(crate) fn may_end(start: DateTime<Utc>, end: DateTime<Utc>) -> bool {
    end >= start && end - start <= POD_RESTART_TAKES
}

impl DomainLedger {
    /// True if an incident or a replacement replaces the pod.
    pub fn replaces_pod(&self, pod: &PodView) -> bool {
        let alone = self
            .replacement
            .as_ref()
            .is_some_and(|r| r.old_pods.contains(pod.uid.as_str()));
        alone || self.incident.as_ref().is_some_and(|i| i.replaces_pod(pod))
    }
}

impl OpenIncident {
    /// Actions that replace all pods identify the pods by attempt instead of listing them.
    pub fn replaces_pod(&self, pod: &PodView) -> bool {
        self.old_pods.contains(pod.uid.as_str()) || self.identifies_by_attempt(pod)
    }

    /// True if a replaced pod was created for an earlier attempt than the incident's.
    pub fn identifies_by_attempt(&self, pod: &PodView) -> bool {
        self.action.replaces_pods() && pod.identity.attempt < self.attempt
    }
}

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use lockstep_api::condition::types;
use lockstep_api::member::Member;
use lockstep_api::node_agent::Report;
use lockstep_api::workload::FailureAction;

use super::Facts;
use crate::ledger::OpenIncident;
use crate::objects::training::{restart_by_rule, training_container};
use crate::pods::{ContainerView, PodPhase, PodView, bare_id};

impl<'a> Facts<'a> {
    pub fn trainer<'p>(&self, member: &Member, pod: &'p PodView) -> Option<&'p ContainerView> {
        pod.containers.get(self.training(&member.group))
    }

    pub fn training(&self, group: &str) -> &'a str {
        self.training.get(group).copied().unwrap_or_default()
    }

    /// From the limits of a member's containers.
    pub fn accelerators(&self, group: &str) -> i64 {
        let Some(template) = self.template(group).and_then(|t| t.spec.as_ref()) else {
            return 0;
        };
        let of = |container| self.view.settings().accelerators_of(container);
        let containers = template.containers.iter();
        containers.map(of).fold(0, i64::saturating_add)
    }

    /// From the agent of the pod's node.
    pub fn reports<'s>(
        &'s self,
        member: &Member,
        pod: &'s PodView,
    ) -> impl Iterator<Item = &'a Report> + 's {
        let container = self.training(&member.group);
        self.pod_reports(pod)
            .filter(move |r| r.container == container)
    }

    /// From the agent of the pod's node.
    pub fn pod_reports<'s>(&'s self, pod: &'s PodView) -> impl Iterator<Item = &'a Report> + 's {
        let all = self.reports.get(pod.uid.as_str()).into_iter().flatten();
        all.filter(move |(node, _)| pod.node.as_deref() == Some(node))
            .map(|(_, r)| *r)
    }

    pub fn is_reported(&self, pod: &PodView) -> bool {
        let node = pod.node.as_deref();
        node.is_some_and(|n| self.agent(n).is_some())
    }

    pub fn template(&self, group: &str) -> Option<&'a PodTemplateSpec> {
        let groups = &self.view.spec().groups;
        let group = groups.iter().find(|g| g.name == group)?;
        Some(&group.template.0)
    }

    /// Runtime id of the training container that arrived at the attempt (or a later one).
    pub fn arrival(&self, pod: &PodView, attempt: i64) -> Option<&'a str> {
        let (container, _) = self.arrivals.container(pod, attempt)?;
        Some(container)
    }

    /// True if the training container in pod status arrived at the attempt (or a later one), or was
    /// started later. Pod status may lag behind the agent.
    pub fn is_container_at(
        &self,
        member: &Member,
        pod: &PodView,
        attempt: i64,
        shown: &ContainerView,
    ) -> bool {
        let Some((arrived, restarts)) = self.arrivals.container(pod, attempt) else {
            return false;
        };
        if shown.runtime_id().map(bare_id) == Some(arrived) || shown.restart_count > restarts {
            return true;
        }
        // A kubelet that lost its disk counts restarts from zero, so compare times. Pod status has
        // whole seconds.
        let since = shown.running_since().map(|at| at + TimeDelta::seconds(1));
        let mut reports = self.reports(member, pod);
        reports.any(|r| r.container_id == arrived && since.is_some_and(|since| since > r.time))
    }

    /// True if a pod has arrived at the attempt (or a later one) and, if supervised, its container
    /// has not ended since.
    pub fn is_at(&self, member: &Member, pod: &PodView, attempt: i64) -> bool {
        let arrived = self.arrival(pod, attempt);
        arrived.is_some_and(|id| !pod.is_supervised() || !self.has_ended(member, pod, id))
    }

    fn has_ended(&self, member: &Member, pod: &PodView, container_id: &str) -> bool {
        let mut reports = self.reports(member, pod);
        reports.any(|r| !r.supervised && r.container_id == container_id)
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

    /// How the user's own rules restart a training container after an exit with 0, which then ends
    /// one task and is no success (KEP-5307).
    pub fn after_success(&self, group: &str) -> Option<FailureAction> {
        let template = self.template(group)?;
        restart_by_rule(template, training_container(template)?, 0)
    }

    pub fn running(&self, member: &Member, pod: &PodView) -> bool {
        pod.phase == PodPhase::Running
            && self
                .trainer(member, pod)
                .is_some_and(ContainerView::running)
    }
}

impl OpenIncident {
    /// Actions that replace all pods identify them by their attempt instead of listing them.
    pub fn replaces_pod(&self, pod: &PodView) -> bool {
        self.old_pods.contains(pod.uid.as_str()) || self.knows_by_attempt(pod)
    }

    /// True if a replaced pod was created for an earlier attempt than the incident's.
    pub fn knows_by_attempt(&self, pod: &PodView) -> bool {
        self.action.replaces_pods() && pod.identity.attempt < self.attempt
    }
}

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::Reach;
use lockstep_api::ids::GangKey;
use lockstep_api::member::Member;
use lockstep_api::scheduling::PodGroup;
use lockstep_api::workload::{Backend, TrainingWorkloadSpec};
use lockstep_api::{RestartOrderSpec, WorkloadSpec};

use crate::gangs::GangView;
use crate::nodes::{AgentInfo, NodeInfo};
use crate::pods::PodView;
use crate::settings::LifecycleSettings;
use crate::view::{
    DryRun, FailedRequest, Held, KueueView, NativeView, Priority, RejectedRequest, ServiceContent,
    WorkloadId, WorkloadView,
};

/// A view without its status. Decisions read the ledger separately, and must not depend on the
/// summary (docs/decisions/0012).
#[derive(Clone, Copy)]
pub(crate) struct Observed<'a> {
    view: &'a WorkloadView,
}

impl<'a> Observed<'a> {
    pub fn new(view: &'a WorkloadView) -> Self {
        Self { view }
    }

    pub fn spec(self) -> &'a TrainingWorkloadSpec {
        self.view.spec()
    }

    pub fn name(self) -> &'a str {
        self.view.name()
    }

    pub fn id(self) -> &'a WorkloadId {
        &self.view.id
    }

    pub fn uid(self) -> &'a str {
        self.view.uid()
    }

    pub fn generation(self) -> i64 {
        self.view.generation()
    }

    pub fn subdomain(self) -> &'a str {
        self.view.subdomain()
    }

    pub fn annotation(self, key: &str) -> Option<&'a str> {
        let annotations = self.view.workload.metadata.annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }

    /// Can contain pods of other owners.
    pub fn pods(self) -> &'a [Arc<PodView>] {
        &self.view.pods
    }

    pub fn disrupted(self) -> &'a BTreeMap<Member, Arc<PodView>> {
        &self.view.disrupted
    }

    pub fn gangs(self) -> &'a BTreeMap<GangKey, GangView> {
        &self.view.gangs
    }

    /// For the creation and deletion of these objects only.
    pub fn pod_groups(self) -> &'a BTreeMap<GangKey, Arc<PodGroup>> {
        &self.view.pod_groups
    }

    pub fn scheduling(self) -> Option<&'a Held<WorkloadSpec>> {
        self.view.scheduling.as_ref()
    }

    pub fn all_agents_supervise(self) -> bool {
        self.view.all_agents_supervise
    }

    /// Backend of the next placement.
    pub fn backend(self) -> Backend {
        let own = self.spec().scheduling.backend;
        own.unwrap_or(self.settings().backend)
    }

    /// True if kube-scheduler places the gangs by their native groups. Pods are then not pinned, and
    /// nodes become known when pods are bound.
    pub fn kube_scheduler_places(self) -> bool {
        self.backend().kube_scheduler_places()
    }

    pub fn native(self) -> &'a NativeView {
        &self.view.native
    }

    pub fn kueue(self) -> &'a KueueView {
        &self.view.kueue
    }

    /// Labels of the workload.
    pub fn label(self, key: &str) -> Option<&'a str> {
        let labels = self.view.workload.metadata.labels.as_ref()?;
        labels.get(key).map(String::as_str)
    }

    pub fn annotations(self) -> impl Iterator<Item = (&'a String, &'a String)> {
        self.view.workload.metadata.annotations.iter().flatten()
    }

    pub fn service(self) -> Option<&'a Held<ServiceContent>> {
        self.view.service.as_ref()
    }

    pub fn order(self) -> Option<&'a Held<RestartOrderSpec>> {
        self.view.order.as_ref()
    }

    pub fn nodes(self) -> &'a BTreeMap<String, Arc<NodeInfo>> {
        &self.view.nodes
    }

    /// When a pod becomes stuck: `overdue` after its grace period, on a node that has been ready
    /// for as long. `None` if the node does not answer.
    pub fn stuck_from(self, pod: &PodView) -> Option<DateTime<Utc>> {
        let (end, node) = (pod.ends_at()?, pod.node.as_deref()?);
        let node = self.nodes().get(node)?;
        let responsive = node.state.reach == Reach::Responding;
        // A disconnected kubelet may receive the deletion only now.
        let since = node.ready_since.map_or(end, |ready| ready.max(end));
        responsive.then(|| since + self.settings().overdue)
    }

    pub fn agents(self) -> &'a BTreeMap<String, Arc<AgentInfo>> {
        &self.view.agents
    }

    /// Nodes that have or had an agent pod, and since when their agent pods are ready or not ready.
    pub fn agent_pods(self) -> &'a BTreeMap<String, DateTime<Utc>> {
        &self.view.agent_pods
    }

    pub fn priority(self) -> &'a Priority {
        &self.view.priority
    }

    pub fn dry_run(self) -> Option<&'a DryRun> {
        self.view.dry_run.as_ref()
    }

    pub fn rejections(self) -> &'a [RejectedRequest] {
        &self.view.rejections
    }

    pub fn failed(self) -> Option<&'a FailedRequest> {
        self.view.failed.as_ref()
    }

    pub fn settings(self) -> &'a LifecycleSettings {
        &self.view.settings
    }
}

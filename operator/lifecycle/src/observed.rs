//! What decisions may look at of a workload's view: all of it but the status.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::ids::GangKey;
use lockstep_api::scheduling::PodGroup;
use lockstep_api::workload::TrainingWorkloadSpec;
use lockstep_api::{RestartOrderSpec, WorkloadSpec};

use crate::nodes::{AgentInfo, NodeInfo};
use crate::pods::PodView;
use crate::settings::LifecycleSettings;
use crate::view::{
    DryRun, FailedRequest, Held, Priority, RefusedRequest, ServiceContent, WorkloadId, WorkloadView,
};
use crate::zones::ZoneInfo;

/// A view without the status in it. What decisions remember of that is the ledger; the rest is a summary
/// for people, and must not become a reason for anything (docs/decisions/0012).
#[derive(Clone, Copy)]
pub(crate) struct Observed<'a> {
    view: &'a WorkloadView,
}

impl<'a> Observed<'a> {
    pub fn new(view: &'a WorkloadView) -> Self {
        Self { view }
    }

    /// The workload's spec.
    pub fn spec(self) -> &'a TrainingWorkloadSpec {
        self.view.spec()
    }

    /// Name of the workload.
    pub fn name(self) -> &'a str {
        self.view.name()
    }

    /// Namespace of the workload.
    pub fn namespace(self) -> &'a str {
        self.view.namespace()
    }

    /// Which workload it is.
    pub fn id(self) -> &'a WorkloadId {
        &self.view.id
    }

    /// UID of the workload.
    pub fn uid(self) -> &'a str {
        self.view.uid()
    }

    /// Generation of the spec.
    pub fn generation(self) -> i64 {
        self.view.generation()
    }

    /// Name of the headless Service and subdomain of the pods.
    pub fn subdomain(self) -> &'a str {
        self.view.subdomain()
    }

    /// An annotation of the workload.
    pub fn annotation(self, key: &str) -> Option<&'a str> {
        let annotations = self.view.workload.metadata.annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }

    /// Pods that it controls, and perhaps others.
    pub fn pods(self) -> &'a [Arc<PodView>] {
        &self.view.pods
    }

    /// Pod groups owned by the workload, by gang key.
    pub fn pod_groups(self) -> &'a BTreeMap<GangKey, Arc<PodGroup>> {
        &self.view.pod_groups
    }

    /// The Workload of that name, of any owner.
    pub fn scheduling(self) -> Option<&'a Held<WorkloadSpec>> {
        self.view.scheduling.as_ref()
    }

    /// The Service named like the subdomain, of any owner.
    pub fn service(self) -> Option<&'a Held<ServiceContent>> {
        self.view.service.as_ref()
    }

    /// The `RestartOrder` of that name, of any owner.
    pub fn order(self) -> Option<&'a Held<RestartOrderSpec>> {
        self.view.order.as_ref()
    }

    /// Nodes named by pods and placements, by name.
    pub fn nodes(self) -> &'a BTreeMap<String, Arc<NodeInfo>> {
        &self.view.nodes
    }

    /// The zone of a node.
    pub fn zone_of(self, node: &NodeInfo) -> Option<&'a ZoneInfo> {
        self.view.zones.get(&node.zone)
    }

    /// Agents of those nodes, by node name.
    pub fn agents(self) -> &'a BTreeMap<String, Arc<AgentInfo>> {
        &self.view.agents
    }

    /// Nodes on which a pod of an agent is, or was, with since when one of these is ready, or none is.
    pub fn agent_pods(self) -> &'a BTreeMap<String, DateTime<Utc>> {
        &self.view.agent_pods
    }

    /// What the priority class resolves to.
    pub fn priority(self) -> &'a Priority {
        &self.view.priority
    }

    /// What the API server says about the pods of the current spec.
    pub fn dry_run(self) -> Option<&'a DryRun> {
        self.view.dry_run.as_ref()
    }

    /// Requests of earlier passes that were refused, until they succeed.
    pub fn refusals(self) -> &'a [RefusedRequest] {
        &self.view.refusals
    }

    /// The request that the API server failed last.
    pub fn failed(self) -> Option<&'a FailedRequest> {
        self.view.failed.as_ref()
    }

    /// Constants.
    pub fn settings(self) -> &'a LifecycleSettings {
        &self.view.settings
    }
}

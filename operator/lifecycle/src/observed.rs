//! The inputs of decisions: the view of a workload without its status.

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

/// A view without its status. Decisions read the ledger part of the status separately. The summary
/// is for people, and decisions must not depend on it (docs/decisions/0012).
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

    pub fn namespace(self) -> &'a str {
        self.view.namespace()
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

    /// Pods that the workload controls, and possibly pods of other owners.
    pub fn pods(self) -> &'a [Arc<PodView>] {
        &self.view.pods
    }

    pub fn pod_groups(self) -> &'a BTreeMap<GangKey, Arc<PodGroup>> {
        &self.view.pod_groups
    }

    /// The Workload of this name, whoever owns it.
    pub fn scheduling(self) -> Option<&'a Held<WorkloadSpec>> {
        self.view.scheduling.as_ref()
    }

    /// The Service named like the subdomain, whoever owns it.
    pub fn service(self) -> Option<&'a Held<ServiceContent>> {
        self.view.service.as_ref()
    }

    /// The `RestartOrder` of this name, whoever owns it.
    pub fn order(self) -> Option<&'a Held<RestartOrderSpec>> {
        self.view.order.as_ref()
    }

    /// Nodes that pods and placements name, by name.
    pub fn nodes(self) -> &'a BTreeMap<String, Arc<NodeInfo>> {
        &self.view.nodes
    }

    pub fn zone_of(self, node: &NodeInfo) -> Option<&'a ZoneInfo> {
        self.view.zones.get(&node.zone)
    }

    /// Agents of `nodes`, by node name.
    pub fn agents(self) -> &'a BTreeMap<String, Arc<AgentInfo>> {
        &self.view.agents
    }

    /// Nodes that have or had an agent pod, with the start of the current state (some pod ready, or
    /// none).
    pub fn agent_pods(self) -> &'a BTreeMap<String, DateTime<Utc>> {
        &self.view.agent_pods
    }

    pub fn priority(self) -> &'a Priority {
        &self.view.priority
    }

    /// Dry-run result for the pods of the current spec.
    pub fn dry_run(self) -> Option<&'a DryRun> {
        self.view.dry_run.as_ref()
    }

    /// Refused requests of earlier passes, until they succeed.
    pub fn refusals(self) -> &'a [RefusedRequest] {
        &self.view.refusals
    }

    /// The last request that the API server failed.
    pub fn failed(self) -> Option<&'a FailedRequest> {
        self.view.failed.as_ref()
    }

    pub fn settings(self) -> &'a LifecycleSettings {
        &self.view.settings
    }
}

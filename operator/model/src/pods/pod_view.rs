//! Fields of a pod's `spec` and `status` in use, from the watch or from a template.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, PersistentVolumeClaimVolumeSource, PodAffinityTerm, PodSchedulingGate,
    PodSpec, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use serde::Deserialize;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpecView {
    pub containers: Vec<ContainerResources>,
    pub init_containers: Vec<ContainerResources>,
    pub overhead: BTreeMap<String, Quantity>,
    /// `spec.resources`, of the whole pod.
    pub resources: Option<ResourceRequirements>,
    pub node_name: Option<String>,
    /// `spec.affinity`, for the pin and for anti-affinity.
    pub affinity: Option<Affinity>,
    pub priority: Option<i32>,
    pub preemption_policy: Option<String>,
    pub scheduling_gates: Vec<PodSchedulingGate>,
    pub restart_policy: Option<String>,
    pub scheduler_name: Option<String>,
    pub active_deadline_seconds: Option<i64>,
    pub termination_grace_period_seconds: Option<i64>,
    pub host_network: bool,
    pub scheduling_group: Option<SchedulingGroupView>,
    pub volumes: Vec<VolumeView>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeView {
    pub persistent_volume_claim: Option<ClaimView>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimView {
    pub claim_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingGroupView {
    /// Name of a `PodGroup` (`scheduling.k8s.io`) in the pod's namespace.
    pub pod_group_name: Option<String>,
}

impl PodSpecView {
    /// Name of the native pod group.
    pub fn group(&self) -> Option<&str> {
        let group = self.scheduling_group.as_ref()?;
        group.pod_group_name.as_deref()
    }

    /// Required terms of the pod anti-affinity.
    pub(crate) fn anti_affinity(&self) -> Option<Arc<[PodAffinityTerm]>> {
        let terms = required_anti_affinity(self.affinity.as_ref());
        (!terms.is_empty()).then(|| terms.into())
    }

    pub(crate) fn claims(&self) -> Option<Arc<[String]>> {
        let mounted = self
            .volumes
            .iter()
            .filter_map(|v| v.persistent_volume_claim.as_ref());
        let names: Vec<String> = mounted.map(|claim| claim.claim_name.clone()).collect();
        (!names.is_empty()).then(|| names.into())
    }
}

pub(crate) fn required_anti_affinity(affinity: Option<&Affinity>) -> &[PodAffinityTerm] {
    let anti = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
    anti.and_then(|a| {
        a.required_during_scheduling_ignored_during_execution
            .as_deref()
    })
    .unwrap_or_default()
}

/// Namespaces to which an anti-affinity term of a pod in namespace `own` applies (`None`: all).
/// Leaves out namespaces that only a `namespaceSelector` with requirements selects.
pub(crate) fn namespaces_of(term: &PodAffinityTerm, own: &Arc<str>) -> Vec<Option<Arc<str>>> {
    let named = term.namespaces.as_deref().unwrap_or_default();
    match &term.namespace_selector {
        Some(selector) if *selector == LabelSelector::default() => vec![None],
        None if named.is_empty() => vec![Some(Arc::clone(own))],
        _ => named.iter().map(|n| Some(n.as_str().into())).collect(),
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerResources {
    pub name: String,
    pub resources: Option<ResourceRequirements>,
    /// `Always` on an init container makes it a sidecar.
    pub restart_policy: Option<String>,
    pub ports: Vec<PortView>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PortView {
    pub container_port: Option<i32>,
    /// Port of the node.
    pub host_port: Option<i32>,
    /// `TCP` by default.
    pub protocol: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatusView {
    pub phase: String,
    pub reason: String,
    pub message: String,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    pub start_time: Option<Time>,
    pub nominated_node_name: Option<String>,
    pub conditions: Vec<PartialCondition>,
    pub container_statuses: Vec<ContainerStatusView>,
    pub init_container_statuses: Vec<ContainerStatusView>,
    /// Pod-level requests that the node has reserved.
    pub allocated_resources: BTreeMap<String, Quantity>,
    /// Pod-level requests of the running pod.
    pub resources: Option<ResourceRequirements>,
}

/// A condition of a pod or a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialCondition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub last_transition_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatusView {
    pub name: String,
    pub ready: bool,
    pub restart_count: i32,
    /// Container id, prefixed with the runtime's scheme.
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
    pub state: ContainerStateView,
    pub last_state: ContainerStateView,
    /// Requests that the node has reserved.
    pub allocated_resources: BTreeMap<String, Quantity>,
    /// Requests of the running container.
    pub resources: Option<ResourceRequirements>,
}

/// State of a container; at most one field is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerStateView {
    /// Not running yet, or not again.
    pub waiting: Option<ContainerStateWaiting>,
    pub running: Option<ContainerStateRunning>,
    pub terminated: Option<ContainerStateTerminated>,
}

impl PodStatusView {
    /// Status of a container or init container.
    pub(crate) fn container(&self, name: &str) -> Option<&ContainerStatusView> {
        let mut all = self
            .container_statuses
            .iter()
            .chain(&self.init_container_statuses);
        all.find(|container| container.name == name)
    }

    /// True if the node can never allocate the requests of the spec.
    pub(crate) fn resize_is_infeasible(&self) -> bool {
        let pending = self.condition("PodResizePending", "True");
        pending.is_some_and(|c| c.reason.as_deref() == Some("Infeasible"))
    }

    pub(crate) fn condition(&self, type_: &str, status: &str) -> Option<&PartialCondition> {
        let mut all = self.conditions.iter();
        all.find(|c| c.type_ == type_ && c.status == status)
    }
}

impl From<&Container> for ContainerResources {
    fn from(c: &Container) -> Self {
        Self {
            name: c.name.clone(),
            resources: c.resources.clone(),
            restart_policy: c.restart_policy.clone(),
            ports: c.ports.iter().flatten().map(PortView::from).collect(),
        }
    }
}

impl From<&ContainerPort> for PortView {
    fn from(port: &ContainerPort) -> Self {
        Self {
            container_port: Some(port.container_port),
            host_port: port.host_port,
            protocol: port.protocol.clone(),
        }
    }
}

impl From<&PersistentVolumeClaimVolumeSource> for VolumeView {
    fn from(claim: &PersistentVolumeClaimVolumeSource) -> Self {
        let claim_name = claim.claim_name.clone();
        Self {
            persistent_volume_claim: Some(ClaimView { claim_name }),
        }
    }
}

fn volumes_of(spec: &PodSpec) -> Vec<VolumeView> {
    let mounted = spec
        .volumes
        .iter()
        .flatten()
        .filter_map(|v| v.persistent_volume_claim.as_ref());
    mounted.map(VolumeView::from).collect()
}

impl From<&PodSpec> for PodSpecView {
    fn from(spec: &PodSpec) -> Self {
        let all = |c: &[Container]| c.iter().map(ContainerResources::from).collect();
        Self {
            containers: all(&spec.containers),
            init_containers: all(spec.init_containers.as_deref().unwrap_or_default()),
            overhead: spec.overhead.clone().unwrap_or_default(),
            resources: spec.resources.clone(),
            node_name: spec.node_name.clone(),
            affinity: spec.affinity.clone(),
            priority: spec.priority,
            preemption_policy: spec.preemption_policy.clone(),
            scheduling_gates: spec.scheduling_gates.clone().unwrap_or_default(),
            restart_policy: spec.restart_policy.clone(),
            scheduler_name: spec.scheduler_name.clone(),
            active_deadline_seconds: spec.active_deadline_seconds,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            host_network: spec.host_network.unwrap_or_default(),
            // Members are in no group of kube-scheduler.
            scheduling_group: None,
            volumes: volumes_of(spec),
        }
    }
}

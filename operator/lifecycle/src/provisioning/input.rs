use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::PodSpec;
use lockstep_api::TrainingWorkload;
use lockstep_api::ids::Uid;
use lockstep_api::key::Key;
use lockstep_api::member::Member;
use lockstep_api::names::provisioning_request_name;
use lockstep_api::scheduling::AutoscalerMode;

use crate::view::WorkloadId;

/// What is requested, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProvisioningSettings {
    pub mode: AutoscalerMode,
    /// Namespace of signal pods. It has no other pods.
    pub namespace: String,
    /// Most signal pods at once.
    pub max_pods: usize,
    /// Default class of requests.
    pub class: String,
    /// Default parameters of requests.
    pub parameters: BTreeMap<String, String>,
}

/// All gangs with an open demand, and all objects that Lockstep may have made for demands.
#[derive(Clone, Debug, Default)]
pub struct ProvisioningView {
    pub gangs: Vec<DemandingGang>,
    /// Pods in the namespace of signal pods, by name.
    pub pods: BTreeMap<String, SignalPod>,
    /// False: `ProvisioningRequest`s and their pod templates are neither watched nor created.
    pub serves_requests: bool,
    pub requests: BTreeMap<Key, HeldObject>,
    pub templates: BTreeMap<Key, HeldObject>,
}

/// A gang whose demand is open.
#[derive(Clone, Debug)]
pub struct DemandingGang {
    pub id: WorkloadId,
    pub workload: Arc<TrainingWorkload>,
    pub pod_group: String,
    /// Number and start of the try.
    pub number: i32,
    pub since: DateTime<Utc>,
    pub priority: i32,
    pub queued_at: Option<DateTime<Utc>>,
    /// True if it has nodes. It keeps its objects until its members are bound, and gets no new ones.
    pub placed: bool,
    /// Members that need capacity and have no bound pod.
    pub members: Vec<Member>,
    /// Pods as the API server admits them, by group. Without an entry, the template counts.
    pub admitted: BTreeMap<String, AdmittedTemplate>,
}

/// Parts of an admitted pod that decide on its node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmittedTemplate {
    pub labels: BTreeMap<String, String>,
    pub spec: PodSpec,
}

/// A pod in the namespace of signal pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalPod {
    pub uid: Uid,
    /// True if Lockstep has created it.
    pub ours: bool,
    pub stage: SignalStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalStage {
    /// Autoscalers do not see it yet.
    Hidden,
    /// It has the condition by which autoscalers see it.
    Shown,
    /// Somebody has bound it, or it has ended.
    Bound,
    Terminating,
}

/// A request or a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldObject {
    pub uid: Uid,
    /// True if a workload controls it, and its label says so too.
    pub ours: bool,
    pub terminating: bool,
}

impl DemandingGang {
    /// Its place among gangs with a demand: as in the queue, without shares of namespaces.
    pub(super) fn position(&self) -> (i64, Option<i64>, Key) {
        let queued_at = self.queued_at.map(|at| at.timestamp_millis());
        let last = queued_at.or(Some(i64::MAX));
        (-i64::from(self.priority), last, self.key())
    }

    pub(super) fn key(&self) -> Key {
        Key::new(&self.id.namespace, &*self.pod_group)
    }

    pub(super) fn request_name(&self) -> String {
        provisioning_request_name(&self.pod_group, self.number, self.since)
    }
}

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::scheduling::v1beta1;
use lockstep_api::ids::{ResourceVersion, Uid};
use lockstep_api::kueue::KueueWorkload;
use lockstep_api::member::Member;
use lockstep_api::{PodGroup, RestartOrder, TrainingWorkloadStatus, Workload};

#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    pub plan: Plan,
    /// Time until the next pass if nothing changes.
    pub requeue_after: Option<Duration>,
}

/// Either a record or actions: state that must survive a crash is persisted before any action.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Write this status if it differs. The ledger is unchanged.
    Idle(Box<TrainingWorkloadStatus>),
    /// Write this status, with a changed ledger, at the view's resourceVersion. Another pass
    /// follows.
    Record(Box<TrainingWorkloadStatus>),
    /// Send these requests in order, adjacent requests of one kind concurrently. Another pass
    /// follows.
    ///
    /// A rejection (403, 422, name taken) of a create or update ends the pass and appears in the
    /// next view. A delete that finds no object, and a repeated create of an own object, are
    /// successes. If the API server fails a request, requests of its kind and later kinds are
    /// postponed, and the next view contains the failure. Other errors are retried with back-off.
    Act(Vec<Action>),
}

/// A request to the API server. The order of the variants is the sending order. UIDs are
/// preconditions.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Create(Object),
    Update {
        object: Object,
        uid: Uid,
        /// Version from which the difference was computed.
        resource_version: ResourceVersion,
    },
    /// Remove the label by which the Service selects the pod. Best effort.
    Unpublish {
        name: String,
        uid: Uid,
    },
    /// Add the pod condition `DisruptionTarget=True` with reason `PreemptionByScheduler`. Best
    /// effort.
    MarkDisrupted {
        name: String,
        uid: Uid,
        message: String,
    },
    DeletePod {
        name: String,
        uid: Uid,
        /// Seconds; may shorten the current grace period. `None`: the pod's own. 0 removes the
        /// object even if containers still run.
        grace: Option<u32>,
    },
    /// Set `activeDeadlineSeconds` to 1: the kubelet ends the pod, restarts no container and keeps
    /// the logs.
    EndPod {
        name: String,
        uid: Uid,
    },
    RemoveGate {
        name: String,
        uid: Uid,
    },
    /// Restore the label by which the Service selects the pod.
    Publish {
        name: String,
        uid: Uid,
    },
    CreatePod {
        member: Member,
        pod: Box<Pod>,
    },
    /// Delete an object that no gang needs, or that an earlier workload of this name has left.
    DeleteSurplus {
        surplus: Surplus,
        name: String,
        uid: Uid,
    },
    /// Delete the workload itself after its time to live.
    DeleteWorkload {
        uid: Uid,
    },
    /// Create pods with `dryRun=All`: are they valid, and how does the API server admit them?
    DryRun {
        /// True if pods wait for the result. Otherwise, a failed request counts as a result.
        needed: bool,
        spec_hash: String,
        /// One per group.
        pods: Vec<Pod>,
        /// A pod with a rule that restarts all containers. This rule has a feature gate of its own,
        /// so its rejection is no verdict on the spec.
        restart_all: Box<Pod>,
    },
}

impl Action {
    /// Verb and kind, for messages.
    pub fn request(&self) -> (&'static str, &'static str) {
        match self {
            Self::Create(object) => ("create", object.kind()),
            Self::Update { object, .. } => ("update", object.kind()),
            Self::Unpublish { .. }
            | Self::MarkDisrupted { .. }
            | Self::EndPod { .. }
            | Self::RemoveGate { .. }
            | Self::Publish { .. } => ("update", "Pod"),
            Self::CreatePod { .. } => ("create", "Pod"),
            Self::DeletePod { .. } => ("delete", "Pod"),
            Self::DeleteSurplus { surplus, .. } => ("delete", surplus.kind()),
            Self::DeleteWorkload { .. } => ("delete", "TrainingWorkload"),
            Self::DryRun { .. } => ("validate", "Pod"),
        }
    }

    pub fn rank(&self) -> u8 {
        match self {
            // Pods do not wait for it, and are deleted without it.
            Self::Create(Object::KueueWorkload(_))
            | Self::Update {
                object: Object::KueueWorkload(_),
                ..
            } => 10,
            Self::Create(_) => 0,
            Self::Update { .. } => 1,
            Self::Unpublish { .. } => 2,
            Self::MarkDisrupted { .. } => 3,
            Self::DeletePod { .. } => 4,
            Self::EndPod { .. } => 5,
            Self::RemoveGate { .. } => 6,
            Self::Publish { .. } => 7,
            Self::CreatePod { .. } => 8,
            Self::DeleteSurplus { .. } => 9,
            Self::DeleteWorkload { .. } => 11,
            Self::DryRun { .. } => 12,
        }
    }
}

/// Kind of an object that no gang needs, or that an earlier workload of this name has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surplus {
    PodGroup,
    NativePodGroup,
    NativeWorkload,
    Workload,
    RestartOrder,
    KueueWorkload,
}

impl Surplus {
    pub fn kind(self) -> &'static str {
        match self {
            Self::PodGroup => POD_GROUP,
            Self::NativePodGroup => NATIVE_POD_GROUP,
            Self::NativeWorkload => NATIVE_WORKLOAD,
            Self::Workload => WORKLOAD,
            Self::RestartOrder => RESTART_ORDER,
            Self::KueueWorkload => KUEUE_WORKLOAD,
        }
    }
}

const WORKLOAD: &str = "Workload";
const RESTART_ORDER: &str = "RestartOrder";
const POD_GROUP: &str = "PodGroup";
const NATIVE_POD_GROUP: &str = "podgroups.scheduling.k8s.io";
const KUEUE_WORKLOAD: &str = "workloads.kueue.x-k8s.io";
const NATIVE_WORKLOAD: &str = "workloads.scheduling.k8s.io";

#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    Service(Box<Service>),
    Workload(Box<Workload>),
    PodGroup(Box<PodGroup>),
    NativeWorkload(Box<v1beta1::Workload>),
    NativePodGroup(Box<v1beta1::PodGroup>),
    RestartOrder(Box<RestartOrder>),
    KueueWorkload(Box<KueueWorkload>),
}

impl Object {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Service(_) => "Service",
            Self::Workload(_) => WORKLOAD,
            Self::PodGroup(_) => POD_GROUP,
            Self::NativeWorkload(_) => NATIVE_WORKLOAD,
            Self::NativePodGroup(_) => NATIVE_POD_GROUP,
            Self::RestartOrder(_) => RESTART_ORDER,
            Self::KueueWorkload(_) => KUEUE_WORKLOAD,
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Service(o) => &o.metadata,
            Self::Workload(o) => &o.metadata,
            Self::PodGroup(o) => &o.metadata,
            Self::NativeWorkload(o) => &o.metadata,
            Self::NativePodGroup(o) => &o.metadata,
            Self::RestartOrder(o) => &o.metadata,
            Self::KueueWorkload(o) => &o.metadata,
        }
        .name
        .as_deref()
        .unwrap_or_default()
    }
}

//! What a pass wants done.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use lockstep_api::ids::{ResourceVersion, Uid};
use lockstep_api::member::Member;
use lockstep_api::{PodGroup, RestartOrder, TrainingWorkloadStatus, Workload};

/// Outcome of a pass over a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    /// What to do now.
    pub plan: Plan,
    /// When to look again although nothing changed: the nearest deadline.
    pub requeue_after: Option<Duration>,
}

/// Either a record or actions, never both: what must survive a crash is persisted before anything
/// is done.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Nothing to do; write this status if it differs from the one that was read. Its ledger is
    /// the same.
    Idle(Box<TrainingWorkloadStatus>),
    /// Write this status (ledger changed, summary brought up to date) with the resourceVersion that
    /// the view was made from, and pass again.
    Record(Box<TrainingWorkloadStatus>),
    /// Send these requests in order; neighbours of one kind may be sent concurrently. Then pass
    /// again.
    ///
    /// A refusal (403, 422, a name taken) of a create or update ends the pass and goes into the
    /// next view. Not-found on a delete and a repeated create of our own object are success. A request
    /// that the API server fails goes into the next view, too, which puts off its kind and later
    /// ones. Any other error is repeated with back-off.
    Act(Vec<Action>),
}

/// One request to the API server. The order of the variants is the order in which they are sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create an object.
    Create(Object),
    /// Bring an object of ours to this content, at the version that the difference was seen at: a
    /// merge patch with its UID and this resourceVersion, which no other object of the name has.
    Update {
        /// The wanted content.
        object: Object,
        /// UID of the object.
        uid: Uid,
        /// Version that the difference was seen at.
        resource_version: ResourceVersion,
    },
    /// Take the label off that the Service selects by. Best effort when the pod is deleted next.
    Unpublish {
        /// Name of the pod.
        name: String,
        /// UID, a precondition.
        uid: Uid,
    },
    /// Add the pod condition `DisruptionTarget=True` with reason `PreemptionByScheduler`. Best
    /// effort.
    MarkDisrupted {
        /// Name of the pod.
        name: String,
        /// UID, a precondition.
        uid: Uid,
        /// Message of the condition: who preempts.
        message: String,
    },
    /// Delete a pod with the UID as precondition.
    DeletePod {
        /// Name of the pod.
        name: String,
        /// UID, a precondition.
        uid: Uid,
        /// Grace period in seconds, which shortens one that runs already; None: the pod's own. 0
        /// takes the object away whether its containers have ended or not.
        grace: Option<u32>,
    },
    /// Take off the preemption gate.
    RemoveGate {
        /// Name of the pod.
        name: String,
        /// UID, a precondition.
        uid: Uid,
    },
    /// Put the label back that the Service selects by, which somebody has taken off.
    Publish {
        /// Name of the pod.
        name: String,
        /// UID, a precondition.
        uid: Uid,
    },
    /// Create the pod of a member.
    CreatePod {
        /// The member.
        member: Member,
        /// The pod.
        pod: Box<Pod>,
    },
    /// Delete a pod group that no gang needs any more, with the UID as precondition.
    DeletePodGroup {
        /// Name of the pod group.
        name: String,
        /// UID, a precondition.
        uid: Uid,
    },
    /// Delete the workload itself, in the background, with the UID as precondition: its time to
    /// live is over.
    DeleteWorkload {
        /// UID, a precondition.
        uid: Uid,
    },
    /// Ask whether pods of this spec are valid, and what the API server makes of them: create each with
    /// `dryRun=All`, for the view's `dry_run` and for the scheduler.
    DryRun {
        /// Whether nothing goes on without an answer. If not, a request that fails is an answer, too.
        needed: bool,
        /// Hash of the spec.
        spec_hash: String,
        /// One pod for each group.
        pods: Vec<Pod>,
        /// One with a rule that restarts all containers: a gate of its own, whose refusal is no verdict
        /// on the spec.
        restart_all: Box<Pod>,
    },
}

impl Action {
    /// What the request does to which kind of object, for messages.
    pub fn request(&self) -> (&'static str, &'static str) {
        match self {
            Self::Create(object) => ("create", object.kind()),
            Self::Update { object, .. } => ("update", object.kind()),
            Self::Unpublish { .. }
            | Self::MarkDisrupted { .. }
            | Self::RemoveGate { .. }
            | Self::Publish { .. } => ("update", "Pod"),
            Self::CreatePod { .. } => ("create", "Pod"),
            Self::DeletePod { .. } => ("delete", "Pod"),
            Self::DeletePodGroup { .. } => ("delete", "PodGroup"),
            Self::DeleteWorkload { .. } => ("delete", "TrainingWorkload"),
            Self::DryRun { .. } => ("validate", "Pod"),
        }
    }

    /// Position of the kind in the order of sending.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Create(_) => 0,
            Self::Update { .. } => 1,
            Self::Unpublish { .. } => 2,
            Self::MarkDisrupted { .. } => 3,
            Self::DeletePod { .. } => 4,
            Self::RemoveGate { .. } => 5,
            Self::Publish { .. } => 6,
            Self::CreatePod { .. } => 7,
            Self::DeletePodGroup { .. } => 8,
            Self::DeleteWorkload { .. } => 9,
            Self::DryRun { .. } => 10,
        }
    }
}

/// An object made for a workload, complete with namespace, labels and owner.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// Headless Service.
    Service(Box<Service>),
    /// Workload.
    Workload(Box<Workload>),
    /// One gang.
    PodGroup(Box<PodGroup>),
    /// Orders to the agents.
    RestartOrder(Box<RestartOrder>),
}

impl Object {
    /// Kind, as in refusals and events.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Service(_) => "Service",
            Self::Workload(_) => "Workload",
            Self::PodGroup(_) => "PodGroup",
            Self::RestartOrder(_) => "RestartOrder",
        }
    }

    /// Name.
    pub fn name(&self) -> &str {
        match self {
            Self::Service(o) => &o.metadata,
            Self::Workload(o) => &o.metadata,
            Self::PodGroup(o) => &o.metadata,
            Self::RestartOrder(o) => &o.metadata,
        }
        .name
        .as_deref()
        .unwrap_or_default()
    }
}

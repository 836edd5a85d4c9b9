//! What a node's agent sees, remembers and does.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::member::{Member, is_in_ranges};
use lockstep_api::names::{annotations, labels};
use lockstep_api::node_agent::Report;
use lockstep_api::restart_order::{DomainOrder, RestartsSeen};
use lockstep_api::{NodeAgentStatus, RestartOrderSpec};
use serde::{Deserialize, Serialize};

use super::supervisor::{SupervisorState, Tell};
use crate::pods::{DEFAULT_CONTAINER, Identity};
use crate::tier::Tier;

/// What one agent sees.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Orders by workload UID, complete: the watch has synced.
    pub orders: &'a BTreeMap<String, RestartOrderSpec>,
    /// Members' pods on this node, complete, as the runtime was listed last.
    pub pods: &'a [NodePod],
    /// Whether it was listed just now. Else it does not answer: its containers are left as they are, and
    /// supervisors are held and released as ever.
    pub listed: bool,
    /// What was persisted last.
    pub records: &'a Records,
    /// What was published last.
    pub published: &'a NodeAgentStatus,
}

/// A member's pod as the runtime shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePod {
    /// UID.
    pub uid: String,
    /// UID of the workload.
    pub workload_uid: String,
    /// Key of the restart domain.
    pub domain: String,
    /// The member.
    pub member: Option<Member>,
    /// Attempt of the domain when the pod was made.
    pub attempt: i64,
    /// Name of the training container.
    pub training: String,
    /// Its containers of that name, running and ended.
    pub containers: Vec<SeenContainer>,
    /// Whether its kubelet restarts all of its containers together.
    pub restarts_whole: bool,
    /// Its containers of other names, running and ended, by name.
    pub others: BTreeMap<String, Vec<SeenContainer>>,
    /// Whether a supervisor starts the training process in its container.
    pub supervised: bool,
    /// What that supervisor has told; None while the agent has no link to it.
    pub supervisor: Option<SupervisorState>,
}

impl NodePod {
    /// Reads the labels and annotations of a sandbox; None when it is no member of ours. Containers
    /// are left empty.
    pub fn read(
        uid: &str,
        pod_labels: &BTreeMap<String, String>,
        pod_annotations: &BTreeMap<String, String>,
    ) -> Option<Self> {
        let identity = Identity::read(pod_labels, pod_annotations);
        Some(Self {
            uid: uid.to_owned(),
            workload_uid: pod_labels.get(labels::WORKLOAD_UID)?.clone(),
            domain: pod_labels.get(labels::DOMAIN)?.clone(),
            member: Some(identity.member?),
            attempt: pod_annotations.get(annotations::ATTEMPT)?.parse().ok()?,
            training: pod_annotations.get(DEFAULT_CONTAINER)?.clone(),
            restarts_whole: identity.tier.is_some_and(Tier::restarts_whole_pod),
            containers: Vec::new(),
            others: BTreeMap::new(),
            supervised: identity.tier.is_some_and(Tier::has_barrier),
            supervisor: None,
        })
    }

    /// The training container that runs; of several the one that was created last.
    pub fn newest_running(&self) -> Option<&SeenContainer> {
        self.containers
            .iter()
            .filter(|c| c.exit.is_none())
            .max_by_key(|c| (c.created_at, &c.id))
    }
}

/// A container as the runtime shows it. One that was created and not started is not listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenContainer {
    /// Runtime id, without scheme.
    pub id: String,
    /// How often the kubelet had restarted the container before this one: the runtime's number of
    /// the attempt to create it.
    pub restarts: i32,
    /// When it was created; the newest is the present one.
    pub created_at: DateTime<Utc>,
    /// How it ended; None while it runs.
    pub exit: Option<Exit>,
}

/// The end of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code.
    pub code: i32,
    /// Reason of the runtime.
    pub reason: String,
    /// When.
    pub at: DateTime<Utc>,
}

/// What the agent persists: it survives the agent and its node's reboot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Records {
    /// The training container of each pod, by pod UID.
    pub pods: BTreeMap<String, Record>,
    /// The last reports, oldest first. Kept here so that an exit that was noticed is also published
    /// after a crash.
    pub reports: Vec<Report>,
    /// The last failure of each container beside the training container that was noticed: its
    /// runtime id, by pod UID and name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, BTreeMap<String, String>>,
}

impl Records {
    /// What an agent begins with that has lost its file: reports that were published are not made
    /// again.
    pub fn from_published(published: &NodeAgentStatus) -> Self {
        Self {
            pods: BTreeMap::new(),
            reports: published.reports.clone(),
            others: BTreeMap::new(),
        }
    }
}

/// The newest training container of a pod that matters: the one that is released, or the last one
/// that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Runtime id.
    pub container_id: String,
    /// How often the kubelet had restarted the container before this one.
    #[serde(default)]
    pub restarts: i32,
    /// Attempt that it is released for.
    pub attempt: i64,
    /// When it was first seen.
    pub seen_at: DateTime<Utc>,
    /// When the agent set out to stop it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping_since: Option<DateTime<Utc>>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exited_at: Option<DateTime<Utc>>,
    /// Attempt of the last order that was seen while nothing ran: what starts next is of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared_for: Option<i64>,
    /// Whether its supervisor has come to the barrier of the attempt. Never without a supervisor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub arrived: bool,
    /// Attempt of the last child whose end was told; its supervisor repeats it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_end: Option<i64>,
    /// The attempt that it is called to and has not come to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called: Option<AttemptCall>,
}

impl Record {
    /// Of a container that runs since it was first seen.
    pub(super) fn new(
        container_id: &str,
        restarts: i32,
        attempt: i64,
        seen_at: DateTime<Utc>,
    ) -> Self {
        Self {
            container_id: container_id.to_owned(),
            restarts,
            attempt,
            seen_at,
            stopping_since: None,
            exited_at: None,
            cleared_for: None,
            arrived: false,
            told_end: None,
            called: None,
        }
    }
}

/// An attempt that a member is to come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptCall {
    /// The attempt.
    pub attempt: i64,
    /// When its order was first seen.
    pub at: DateTime<Utc>,
}

/// What the agent does next, in this order: persist, stop and tell, publish.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePlan {
    /// To be persisted before anything is stopped or published; None when unchanged.
    pub records: Option<Records>,
    /// Containers to stop with timeout 0. Repeated while they run.
    pub stop: Vec<Stop>,
    /// What to say to supervisors. Repeated until they have heard.
    pub tell: Vec<Tell>,
    /// Status to publish; None when there is nothing to tell. Version, runtime and capabilities are
    /// those of `published`.
    pub status: Option<NodeAgentStatus>,
    /// How long the status may wait for what comes after it; zero where it tells of a failure, which
    /// others wait for.
    pub slot: Duration,
    /// When to look again although nothing changed.
    pub wake_after: Option<Duration>,
}

/// A container to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// UID of the pod.
    pub pod_uid: String,
    /// Runtime id.
    pub container_id: String,
}

/// The order for a pod's domain.
pub(super) fn order_for<'a>(
    orders: &'a BTreeMap<String, RestartOrderSpec>,
    pod: &NodePod,
) -> Option<&'a DomainOrder> {
    orders
        .get(&pod.workload_uid)?
        .domains
        .iter()
        .find(|d| d.key == pod.domain)
}

/// Whether the order is for the member to restart in place.
pub(super) fn is_ordered(order: &DomainOrder, member: Option<&Member>) -> bool {
    member.is_some_and(|m| names(&order.members, m))
}

/// Whether ranges of an order name the member. Those that do not parse name nobody: nothing is
/// stopped on a guess.
fn names(ranges: &[String], member: &Member) -> bool {
    is_in_ranges(ranges, member).unwrap_or(false)
}

/// Restarts of the member's training container that were seen when the order was decided.
pub(super) fn restarts_seen(order: &DomainOrder, member: Option<&Member>) -> i32 {
    restarts_in(&order.exceptions, member).unwrap_or(order.restarts_seen)
}

/// Restarts of the container whose failure is answered for the member alone.
pub(super) fn goes_on_alone(order: &DomainOrder, member: Option<&Member>) -> Option<i32> {
    restarts_in(&order.alone, member)
}

fn restarts_in(list: &[RestartsSeen], member: Option<&Member>) -> Option<i32> {
    let member = member?;
    let entry = list.iter().find(|entry| names(&entry.members, member));
    entry.map(|e| e.restarts)
}

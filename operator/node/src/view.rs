//! Observations, memory and actions of a node's agent.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::member::{Member, is_in_ranges};
use lockstep_api::names::{annotations, labels};
use lockstep_api::node_agent::Report;
use lockstep_api::restart_order::{DomainOrder, RestartsSeen};
use lockstep_api::{NodeAgentStatus, RestartOrderSpec};
use serde::{Deserialize, Serialize};

use super::supervisor::{SupervisorMessage, SupervisorState};
use lockstep_api::member_pod::{DEFAULT_CONTAINER, Identity};
use lockstep_api::tier::Tier;

/// Orders by namespace and UID of their workload. Labels of a pod can name any workload, but a
/// member is in the namespace of its workload.
pub type NamespacedOrders = BTreeMap<(String, String), RestartOrderSpec>;

#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    pub node: &'a str,
    pub orders: &'a NamespacedOrders,
    /// Pods of the last listing.
    pub pods: &'a [NodePod],
    /// True if the listing is new. Otherwise only supervisors are paused and released.
    pub listed: bool,
    pub records: &'a Records,
    pub published: &'a NodeAgentStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePod {
    pub uid: String,
    pub namespace: String,
    pub workload_uid: String,
    pub domain: String,
    pub member: Option<Member>,
    /// Attempt of the domain when the pod was created.
    pub attempt: i64,
    pub training: String,
    /// Containers of that name, running and ended.
    pub containers: Vec<ObservedContainer>,
    /// True if its kubelet restarts all containers together.
    pub restarts_whole: bool,
    /// Containers of other names, running and ended, by name.
    pub others: BTreeMap<String, Vec<ObservedContainer>>,
    /// True if a supervisor starts the training process.
    pub supervised: bool,
    /// State of the supervisor. `None` if the agent has no link to it.
    pub supervisor: Option<SupervisorState>,
    /// True if its order exists and the agent does not have it yet. Until then, nothing is decided
    /// about the pod.
    pub awaits_order: bool,
}

impl NodePod {
    /// A pod without its containers. `None` if the sandbox is not a member's pod.
    pub fn read(
        uid: &str,
        namespace: &str,
        pod_labels: &BTreeMap<String, String>,
        pod_annotations: &BTreeMap<String, String>,
    ) -> Option<Self> {
        let identity = Identity::read(pod_labels, pod_annotations);
        Some(Self {
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
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
            awaits_order: false,
        })
    }

    pub fn newest_running(&self) -> Option<&ObservedContainer> {
        self.containers
            .iter()
            .filter(|c| c.exit.is_none())
            .max_by_key(|c| (c.created_at, &c.id))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedContainer {
    /// Runtime id, without scheme.
    pub id: String,
    /// Restart count of the kubelet (the runtime's attempt number).
    pub restarts: i32,
    /// The newest container is the current one.
    pub created_at: DateTime<Utc>,
    pub exit: Option<Exit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: i32,
    pub reason: String,
    pub at: DateTime<Utc>,
}

/// The agent's persistent memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Records {
    /// Record of the training container of each pod, by pod UID.
    pub pods: BTreeMap<String, Record>,
    /// Oldest first. Persisted so that an observed exit is published after a crash.
    pub reports: Vec<Report>,
    /// Runtime id of the last failure of each other container, by pod UID and name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, BTreeMap<String, String>>,
}

impl Records {
    /// Copies what is known of a pod about which nothing is decided.
    pub(super) fn keep(&mut self, pod: &NodePod, previous: &Self) {
        let (record, others) = (previous.pods.get(&pod.uid), previous.others.get(&pod.uid));
        self.pods
            .extend(record.map(|r| (pod.uid.clone(), r.clone())));
        self.others
            .extend(others.map(|o| (pod.uid.clone(), o.clone())));
    }

    /// Records after the loss of the file. Published reports are not repeated.
    pub fn from_published(published: &NodeAgentStatus) -> Self {
        Self {
            pods: BTreeMap::new(),
            reports: published.reports.clone(),
            others: BTreeMap::new(),
        }
    }
}

/// The released training container, or the last ended one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub container_id: String,
    /// Restart count of the kubelet.
    #[serde(default)]
    pub restarts: i32,
    pub attempt: i64,
    pub seen_at: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping_since: Option<DateTime<Utc>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exited_at: Option<DateTime<Utc>>,
    /// Attempt of the last order that arrived while no container ran. The next container belongs to
    /// this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared_for: Option<i64>,
    /// True if its supervisor has arrived at the barrier.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub arrived: bool,
    /// Attempt of the last reported exit of a child. The supervisor repeats that report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_end: Option<i64>,
    /// Attempt at which the member is expected and has not arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called: Option<AttemptCall>,
}

impl Record {
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

/// An attempt at which a member is expected to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptCall {
    pub attempt: i64,
    pub at: DateTime<Utc>,
}

/// Next actions in this order: persist, stop and send messages, publish.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePlan {
    /// Persist before any other action. `None` if unchanged.
    pub records: Option<Records>,
    /// Containers to stop with timeout 0. Repeated while they run.
    pub stop: Vec<Stop>,
    /// Messages to supervisors. Repeated until they take effect.
    pub messages: Vec<SupervisorMessage>,
    /// `None` without changes. Version, runtime and capabilities are copied from `published`.
    pub status: Option<NodeAgentStatus>,
    /// How long the status may be delayed. Zero if it reports a failure.
    pub slot: Duration,
    /// When the next decision is due without changes.
    pub wake_after: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    pub pod_uid: String,
    pub container_id: String,
}

pub(super) fn order_for<'a>(
    orders: &'a NamespacedOrders,
    pod: &NodePod,
) -> Option<&'a DomainOrder> {
    orders
        .get(&(pod.namespace.clone(), pod.workload_uid.clone()))?
        .domains
        .iter()
        .find(|d| d.key == pod.domain)
}

/// True if the member restarts in place.
pub(super) fn is_ordered(order: &DomainOrder, member: Option<&Member>) -> bool {
    member.is_some_and(|m| names(&order.members, m))
}

/// Unparsable ranges contain no member, so that no container is stopped by mistake.
fn names(ranges: &[String], member: &Member) -> bool {
    is_in_ranges(ranges, member).unwrap_or(false)
}

/// Restart count when the order was decided.
pub(super) fn restarts_seen(order: &DomainOrder, member: Option<&Member>) -> i32 {
    restarts_in(&order.exceptions, member).unwrap_or(order.restarts_seen)
}

/// Restart count of the container whose failure is handled for the member alone.
pub(super) fn goes_on_alone(order: &DomainOrder, member: Option<&Member>) -> Option<i32> {
    restarts_in(&order.alone, member)
}

fn restarts_in(list: &[RestartsSeen], member: Option<&Member>) -> Option<i32> {
    let member = member?;
    let entry = list.iter().find(|entry| names(&entry.members, member));
    entry.map(|e| e.restarts)
}

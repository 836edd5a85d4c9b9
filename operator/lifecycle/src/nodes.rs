//! What is kept of nodes and of their agents.

use chrono::{DateTime, Utc};
use lockstep_api::NodeAgentStatus;
use lockstep_api::node_agent::{Arrival, MemberProgress};

/// A node that runs, or is to run, members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Since when the node's Ready condition is other than True; None while it is ready.
    pub not_ready_since: Option<DateTime<Utc>>,
    /// When the node's Ready condition became True, by the node's clock: it tells one time from another
    /// and is compared with nothing else.
    pub became_ready: Option<DateTime<Utc>>,
    /// Since when it is True, by the manager's clock; None where the condition does not say.
    pub ready_since: Option<DateTime<Utc>>,
    /// Whether it carries the taint `node.kubernetes.io/out-of-service`.
    pub out_of_service: bool,
    /// Region and zone, from its labels; empty without them.
    pub zone: String,
    /// `status.declaredFeatures` (KEP-5328).
    pub declared_features: Vec<String>,
    /// `status.nodeInfo.kubeletVersion`, such as `v1.37.2`.
    pub kubelet_version: String,
}

impl NodeInfo {
    /// What is kept of a node that shows this now. One that has become ready since it was seen last is
    /// ready from now on; one that is seen for the first time may have been for long.
    #[must_use]
    pub fn heard(mut self, before: Option<&Self>, now: DateTime<Utc>) -> Self {
        self.ready_since = self.became_ready.map(|at| match before {
            None => at.min(now),
            Some(old) if old.became_ready == Some(at) => old.ready_since.unwrap_or(now),
            Some(_) => now,
        });
        self
    }

    /// Whether it is ready: what is known of it is not old.
    pub fn answers(&self) -> bool {
        self.not_ready_since.is_none() && !self.out_of_service
    }
}

/// The agent of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentInfo {
    /// Whether the agent's own pod is ready.
    pub ready: bool,
    /// What it published. The manager believes it only about pods bound to its node, and no progress of
    /// later than it was heard of.
    pub status: NodeAgentStatus,
    /// When each of its arrivals was heard of, by the manager's clock; in their order.
    pub heard_at: Vec<DateTime<Utc>>,
}

impl AgentInfo {
    /// What is kept of an agent that published this now. An arrival that was there before has been
    /// heard of before.
    pub fn heard(
        ready: bool,
        mut status: NodeAgentStatus,
        before: Option<&Self>,
        now: DateTime<Utc>,
    ) -> Self {
        for new in &mut status.progress {
            let mut reported = before.iter().flat_map(|b| &b.status.progress);
            let old = reported.find(|p| (&p.pod_uid, p.attempt) == (&new.pod_uid, new.attempt));
            by_our_clock(new, old, now);
        }
        let known = |new| before.and_then(|b| b.heard_before(new));
        let heard_at = status.arrivals.iter();
        let heard_at = heard_at.map(|new| known(new).unwrap_or(now)).collect();
        // There are thousands of these, each as it was read: with room for twice as much.
        status.reports.shrink_to_fit();
        status.arrivals.shrink_to_fit();
        Self {
            ready,
            status,
            heard_at,
        }
    }

    /// When an arrival of the same pods was heard of that is among those that are known.
    fn heard_before(&self, new: &Arrival) -> Option<DateTime<Utc>> {
        let mut known = self.status.arrivals.iter().zip(&self.heard_at);
        known.find_map(|(old, at)| (old.pods == new.pods && is_same(old, new)).then_some(*at))
    }
}

/// What a node tells has happened when it was first heard of at the latest, whatever the clock there
/// says.
fn by_our_clock(new: &mut MemberProgress, old: Option<&MemberProgress>, now: DateTime<Utc>) {
    let same_step = old.filter(|old| old.step == new.step);
    let same_checkpoint = old.filter(|old| old.checkpoint_step == new.checkpoint_step);
    let first = same_step.map_or(now, |old| old.step_time);
    new.step_time = new.step_time.min(first);
    let first = same_checkpoint.and_then(|old| old.checkpoint_time);
    new.checkpoint_time = new.checkpoint_time.map(|at| at.min(first.unwrap_or(now)));
}

/// Whether two arrivals are about the same attempt of the same domain.
fn is_same(a: &Arrival, b: &Arrival) -> bool {
    (&a.workload_uid, &a.domain, a.attempt) == (&b.workload_uid, &b.domain, b.attempt)
}

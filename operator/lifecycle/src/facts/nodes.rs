//! What is known of nodes and their agents, and of pods that their nodes do not end.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::node_agent::capabilities;

use super::Facts;
use crate::ledger::GangLedger;
use crate::nodes::AgentInfo;
use crate::pods::PodView;
use crate::wake::{Due, Wake};

/// How long an agent may take to start: its pod is made as soon as there is the node, and its image
/// is small.
const AGENT_STARTS: TimeDelta = TimeDelta::seconds(30);

impl<'a> Facts<'a> {
    /// The agent of a node: one that is ready, or of which its node says nothing now.
    pub fn agent(&self, node: &str) -> Option<&'a AgentInfo> {
        self.agents.get(node).copied()
    }

    /// Until when a node's agent may yet come that is not there: the node has become ready a moment
    /// ago, or the agent was there a moment ago, as while agents are replaced by newer ones, or it has
    /// become ready and what it can do is not known yet. None: it is there, or there is no reason to
    /// expect it.
    pub fn agent_due(&self, node: &str) -> Option<Due> {
        let known = self
            .agent(node)
            .is_some_and(|a| !a.status.capabilities.is_empty());
        if known || !self.view.has_agents() {
            return None;
        }
        let changed = self.view.agents().get(node).and_then(|a| a.since);
        let ready = self.view.nodes().get(node).and_then(|n| n.ready_since);
        let since = changed.max(ready)?;
        Some(self.due(since + AGENT_STARTS))
    }

    /// Whether a node's agent can stop containers.
    pub fn can_stop(&self, node: &str) -> bool {
        self.is_capable(node, capabilities::STOP)
    }

    /// Whether a node's agent is linked to the supervisors there.
    pub fn can_supervise(&self, node: &str) -> bool {
        self.is_capable(node, capabilities::SUPERVISE)
    }

    fn is_capable(&self, node: &str, capability: &str) -> bool {
        let agent = self.agent(node);
        agent.is_some_and(|a| a.status.capabilities.iter().any(|c| c == capability))
    }

    /// Whether the node is lost: deleted, out of service, or NotReady for `nodeLostSeconds`.
    pub fn lost(&self, node: &str) -> bool {
        !self.view.nodes().contains_key(node) || self.lost.contains(node)
    }

    /// From when on a pod that still has not ended is stuck: its grace period is long over, and its
    /// node answers and has answered for as long. None: the node does not answer.
    pub fn stuck_from(&self, pod: &PodView) -> Option<DateTime<Utc>> {
        let (end, node) = (pod.ends_at()?, pod.node.as_deref()?);
        let node = self.view.nodes().get(node)?;
        let answers = node.answers();
        // A node that was silent may only now learn that the pod is to end.
        let since = node.ready_since.map_or(end, |ready| ready.max(end));
        answers.then(|| since + self.view.settings().overdue)
    }

    /// Whether a pod has not ended although its grace period is long over and its node answers: a
    /// process that no signal ends, a mount that hangs, a foreign finalizer.
    pub fn is_stuck(&self, pod: &PodView, wake: &mut Wake) -> bool {
        let from = self.stuck_from(pod).filter(|_| !pod.terminal());
        from.is_some_and(|from| self.due(from).passed(wake))
    }

    /// Whether a pod was deleted by force and its object is kept by a finalizer: nobody waits for
    /// it any more.
    pub fn is_given_up(&self, pod: &PodView, wake: &mut Wake) -> bool {
        pod.deletion_grace == 0 && self.is_stuck(pod, wake)
    }

    /// Whether a member of the gang may be created on a node. Avoidances that are over have been
    /// removed in a stage before.
    pub fn usable(&self, gang: &GangLedger, node: &str) -> bool {
        !gang.avoid.contains_key(node) && !self.lost(node)
    }
}

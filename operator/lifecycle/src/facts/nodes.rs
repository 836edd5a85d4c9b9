//! What is known of nodes and their agents, and of pods that their nodes do not end.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::member::Member;
use lockstep_api::node_agent::capabilities;

use super::Facts;
use crate::ledger::GangLedger;
use crate::nodes::AgentInfo;
use crate::objects::supervise::supervisor_image;
use crate::pods::PodView;
use crate::wake::{Due, Wake};
use crate::zones::ZoneInfo;

/// How long an agent may take to start: its pod is made as soon as there is the node, and its image
/// is small.
const AGENT_STARTS: TimeDelta = TimeDelta::seconds(30);

impl<'a> Facts<'a> {
    /// The agent of a node: one that is ready, or of which its node says nothing now.
    pub fn agent(&self, node: &str) -> Option<&'a AgentInfo> {
        self.agents.get(node).copied()
    }

    /// Until when a member that meets others has no pod made for it on a node, since the agent there
    /// is on its way: its pod is new, or was ready a moment ago, as while agents are replaced by newer
    /// ones; the node has become ready a moment ago; or the agent has, and what it can do is not known
    /// yet. Without it the pod has no supervisor for as long as it lives, and with it none of its
    /// domain restarts in place. None: the agent is there, or is not expected, or is of no use to the
    /// member.
    pub fn agent_due(&self, member: &Member, node: &str) -> Option<Due> {
        let known = self
            .agent(node)
            .is_some_and(|a| !a.status.capabilities.is_empty());
        let (settings, spec) = (self.view.settings(), self.spec());
        let mut groups = spec.groups.iter().filter(|g| g.name == member.group);
        if known || !groups.any(|g| supervisor_image(settings, spec, g).is_some()) {
            return None;
        }
        let changed = *self.view.agent_pods().get(node)?;
        let ready = self.view.nodes().get(node).and_then(|n| n.ready_since);
        let since = ready.map_or(changed, |ready| ready.max(changed));
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

    /// Whether the node is lost: deleted, out of service, or NotReady for `nodeLostSeconds` without an outage
    /// of its zone.
    pub fn lost(&self, node: &str) -> bool {
        !self.view.nodes().contains_key(node) || self.lost.contains(node)
    }

    /// Whether the node is lost for its silence alone: its containers may still run, and it may come back.
    pub fn silent(&self, node: &str) -> bool {
        let info = self.view.nodes().get(node);
        self.lost(node) && info.is_some_and(|n| !n.out_of_service)
    }

    /// The outage in which one of these nodes is silent.
    pub fn outage<'n>(&self, nodes: impl IntoIterator<Item = &'n str>) -> Option<&'a ZoneInfo> {
        let silent = nodes.into_iter().filter_map(|name| {
            let node = self.view.nodes().get(name)?;
            node.not_ready_since?;
            self.view.zone_of(node)
        });
        silent.into_iter().find(|zone| zone.outage)
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

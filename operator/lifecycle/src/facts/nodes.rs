use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::NodeState;
use lockstep_api::member::Member;
use lockstep_api::node_agent::capabilities;

use super::Facts;
use crate::ledger::GangLedger;
use crate::nodes::AgentInfo;
use crate::objects::supervise::{Delivery, supervisor_image};
use crate::pods::PodView;
use crate::wake::Due;

/// How long an agent may take to start. Its pod is created together with the node.
const AGENT_STARTS: TimeDelta = TimeDelta::seconds(30);

/// Whether decisions still count on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Open,
    /// Being deleted. It may still run.
    Ending,
    /// Does not end on a node that answers, for example because of a hanging mount or another
    /// controller's finalizer.
    Stuck,
    /// On a lost node, which cannot confirm its end.
    Lost,
    /// Deleted unbound or by force, and only a finalizer keeps its object. No decision waits for it.
    GivenUp,
    /// Succeeded or failed.
    Ended,
}

impl<'a> Facts<'a> {
    /// The agent of a node, if it is ready or the node cannot report readiness now.
    pub fn agent(&self, node: &str) -> Option<&'a AgentInfo> {
        self.agents.get(node).copied()
    }

    /// Time until which the creation of a member's pod waits for an agent. It waits if the agent's
    /// pod or the node became ready recently, if the agent's pod is new, or if the agent's
    /// capabilities are unknown. A pod created without an agent never gets a supervisor, so each
    /// restart of its domain replaces it. `None`: the agent is present, not expected, or of no use to
    /// the member.
    pub fn agent_due(&self, member: &Member, node: &str) -> Option<Due> {
        let has_capabilities = self
            .agent(node)
            .is_some_and(|a| !a.status.capabilities.is_empty());
        let (settings, spec) = (self.view.settings(), self.spec());
        let mut groups = spec.groups.iter().filter(|g| g.name == member.group);
        if has_capabilities || !groups.any(|g| supervisor_image(settings, spec, g).is_some()) {
            return None;
        }
        Some(self.due(self.agent_started_by(node)?))
    }

    /// Time by which an agent starts whose pod or node has just changed. `None`: the node never had
    /// an agent.
    fn agent_started_by(&self, node: &str) -> Option<DateTime<Utc>> {
        let changed = *self.view.agent_pods().get(node)?;
        let ready = self.view.nodes().get(node).and_then(|n| n.ready_since);
        Some(ready.map_or(changed, |ready| ready.max(changed)) + AGENT_STARTS)
    }

    pub fn can_stop(&self, node: &str) -> bool {
        self.is_capable(node, capabilities::STOP)
    }

    /// True if the agent of the node is being replaced and was able to stop containers. If it does
    /// not return, its members become overdue.
    pub fn can_stop_soon(&self, node: &str) -> bool {
        let unready = self.view.agents().get(node).filter(|agent| !agent.ready);
        unready.is_some_and(|agent| agent.status.has(capabilities::STOP))
            && self.agent_started_by(node).is_some_and(|at| self.now < at)
    }

    /// How members on the node, or on any node, get their supervisor. `None`: an agent is not linked
    /// to supervisors.
    pub fn delivery(&self, node: Option<&str>) -> Option<Delivery> {
        let Some(node) = node else {
            let all = self.view.all_agents_supervise();
            return all.then_some(Delivery::Copied);
        };
        if !self.is_capable(node, capabilities::SUPERVISE) {
            return None;
        }
        let info = self.view.nodes().get(node);
        Some(if info.is_some_and(|n| n.mounts_images()) {
            Delivery::Mounted
        } else {
            Delivery::Copied
        })
    }

    fn is_capable(&self, node: &str, capability: &str) -> bool {
        let agent = self.agent(node);
        agent.is_some_and(|agent| agent.status.has(capability))
    }

    pub fn node_state(&self, node: &str) -> NodeState {
        let info = self.view.nodes().get(node);
        info.map_or(NodeState::GONE, |n| n.state)
    }

    /// True if a node is deleted, out of service, or NotReady for `nodeLostSeconds` without an
    /// outage of its zone.
    pub fn lost(&self, node: &str) -> bool {
        !self.view.nodes().contains_key(node) || self.lost.contains(node)
    }

    pub fn standing(&self, pod: &PodView) -> Standing {
        let is_stuck = self.stuck.contains(pod.uid.as_str());
        if pod.terminal() {
            Standing::Ended
        } else if pod.never_runs() || is_stuck && pod.deletion_grace == 0 {
            Standing::GivenUp
        } else if is_stuck {
            Standing::Stuck
        } else if pod.node.as_deref().is_some_and(|node| self.lost(node)) {
            Standing::Lost
        } else if pod.terminating() {
            Standing::Ending
        } else {
            Standing::Open
        }
    }

    /// Expired avoidances are already removed.
    pub fn usable(&self, gang: &GangLedger, node: &str) -> bool {
        !gang.avoid.contains_key(node) && !self.lost(node)
    }
}

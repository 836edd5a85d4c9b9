use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use lockstep_api::ids::NodeName;
use lockstep_api::node_agent::capabilities;
use lockstep_lifecycle::nodes::AgentInfo;

/// Agents by node, with the number of agents that can supervise.
#[derive(Debug, Default)]
pub struct AgentTable {
    by_node: BTreeMap<NodeName, Arc<AgentInfo>>,
    supervising: usize,
}

impl Deref for AgentTable {
    type Target = BTreeMap<NodeName, Arc<AgentInfo>>;

    fn deref(&self) -> &Self::Target {
        &self.by_node
    }
}

impl AgentTable {
    /// False without agents.
    pub fn all_supervise(&self) -> bool {
        !self.is_empty() && self.supervising == self.len()
    }

    pub(super) fn insert(&mut self, node: NodeName, agent: Arc<AgentInfo>) {
        self.supervising += usize::from(supervises(&agent));
        if let Some(old) = self.by_node.insert(node, agent) {
            self.supervising -= usize::from(supervises(&old));
        }
    }

    pub(super) fn remove(&mut self, node: &str) -> Option<NodeName> {
        let (node, old) = self.by_node.remove_entry(node)?;
        self.supervising -= usize::from(supervises(&old));
        Some(node)
    }

    /// Returns false if this is not a change.
    pub(super) fn set_ready(&mut self, node: &NodeName, ready: bool) -> Option<bool> {
        let agent = self.by_node.get_mut(node)?;
        let changes = agent.ready != ready;
        if changes {
            Arc::make_mut(agent).ready = ready;
        }
        Some(changes)
    }
}

fn supervises(agent: &AgentInfo) -> bool {
    agent.status.has(capabilities::SUPERVISE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_api::NodeAgentStatus;

    fn agent(capabilities: &[&str]) -> Arc<AgentInfo> {
        let capabilities = capabilities.iter().map(|&c| c.to_owned()).collect();
        Arc::new(AgentInfo {
            status: NodeAgentStatus {
                capabilities,
                ..NodeAgentStatus::default()
            },
            ..AgentInfo::default()
        })
    }

    #[test]
    fn all_agents_supervise_while_no_agent_lacks_the_capability() {
        let mut table = AgentTable::default();
        let node = |name| NodeName::read(Some(name)).unwrap();
        assert!(!table.all_supervise());
        table.insert(node("n1"), agent(&[capabilities::SUPERVISE]));
        assert!(table.all_supervise());
        table.insert(node("n2"), agent(&[]));
        assert!(!table.all_supervise());
        table.insert(node("n2"), agent(&[capabilities::SUPERVISE]));
        assert!(table.all_supervise());
        table.insert(node("n1"), agent(&[]));
        assert!(!table.all_supervise());
        table.remove("n1");
        assert!(table.all_supervise());
        table.remove("n2");
        assert!(!table.all_supervise());
    }
}

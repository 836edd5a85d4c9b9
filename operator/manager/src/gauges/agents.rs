use std::collections::BTreeMap;

use prometheus_client::encoding::DescriptorEncoder;

use crate::encode::{gauge, single};
use crate::index::State;

#[derive(Debug)]
pub(super) struct AgentCounts {
    states: BTreeMap<&'static str, i64>,
    nodes_without: i64,
}

impl AgentCounts {
    pub fn of(state: &State) -> Self {
        let mut states = BTreeMap::from([("ready", 0), ("not_ready", 0)]);
        for agent in state.agents.values() {
            let state = if agent.ready { "ready" } else { "not_ready" };
            *states.entry(state).or_default() += 1;
        }
        let lacks = |node: &&_| !state.agents.get(*node).is_some_and(|a| a.ready);
        Self {
            states,
            nodes_without: state.nodes_with_members().filter(lacks).count() as i64,
        }
    }

    pub fn encode(self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        gauge(
            encoder,
            "lockstep_agents",
            "Node agents by state of their pod: ready, not_ready",
            self.states
                .into_iter()
                .map(|(state, n)| ([("state", state)], n)),
        )?;
        single(
            encoder,
            "lockstep_nodes_without_agent",
            "Nodes with members and without a ready agent: members there are recreated instead of restarted in place",
            self.nodes_without,
        )
    }
}

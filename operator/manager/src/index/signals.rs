//! Signals that nodes have.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::ids::NodeName;
use lockstep_api::node_signal::{FoundSignal, SignalRule, next_change, outlook};
use lockstep_api::{NodeHealthMode, NodeSignal, Outlook};
use lockstep_lifecycle::nodes::NodeInfo;
use lockstep_model::ClusterModel;

#[derive(Debug)]
pub(super) struct SignalTable {
    pub rules: Arc<[SignalRule]>,
    pub mode: NodeHealthMode,
    /// Nodes in whose fields rules found something.
    pub nodes: BTreeMap<NodeName, SignalsOfNode>,
    /// Time up to which ends of hold times have had their effect.
    pub followed: DateTime<Utc>,
}

#[derive(Debug, Default)]
pub(super) struct SignalsOfNode {
    pub found: Vec<FoundSignal>,
    /// Sorted by name.
    pub signals: Vec<NodeSignal>,
}

impl Default for SignalTable {
    fn default() -> Self {
        Self {
            rules: Arc::new([]),
            mode: NodeHealthMode::default(),
            nodes: BTreeMap::new(),
            followed: DateTime::default(),
        }
    }
}

impl SignalTable {
    pub fn remove(&mut self, node: &str) {
        self.nodes.remove(node);
    }

    /// Time of the next end of a hold time, or of the next deadline.
    pub fn next_change(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let nodes = self.nodes.values();
        let times = nodes.filter_map(|node| next_change(&node.signals, now));
        times.min().filter(|_| self.mode != NodeHealthMode::Off)
    }

    /// Sets the signals of a node by what was found. `first`: the node has just become known.
    pub fn renew(
        &mut self,
        node: &NodeName,
        model: &ClusterModel,
        first: bool,
        now: DateTime<Utc>,
    ) {
        let Some(SignalsOfNode { found, signals }) = self.nodes.get_mut(node) else {
            return;
        };
        let before = mem::take(signals);
        let of_name = |name: &str| before.iter().find(|signal| signal.name == name);
        let existing = found.iter().filter(|found| is_exceeded(found, node, model));
        signals.extend(existing.filter_map(|f| f.received(of_name(f.name()), first, now)));
        signals.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Sets signals and outlook by the mode.
    pub fn show(&self, node: &NodeName, info: &mut NodeInfo, now: DateTime<Utc>) {
        let signals = self.nodes.get(node).map(|node| &node.signals);
        info.signals = match self.mode {
            NodeHealthMode::Off => Vec::new(),
            NodeHealthMode::Observe | NodeHealthMode::Act => signals.cloned().unwrap_or_default(),
        };
        info.state.outlook = match self.mode {
            NodeHealthMode::Act => outlook(&info.signals, now),
            NodeHealthMode::Off | NodeHealthMode::Observe => Outlook::Healthy,
        };
    }
}

/// True unless the signal is about resources, and the pods on the node request no more than it
/// offers.
fn is_exceeded(found: &FoundSignal, node: &NodeName, model: &ClusterModel) -> bool {
    if found.limited.is_empty() {
        return true;
    }
    let cluster = model.snapshot();
    let Some(ix) = cluster.ordinal(node.as_str()) else {
        return false;
    };
    found.limited.iter().any(|limited| {
        let pods = cluster.pods_on(ix).filter(|pod| pod.bound.is_some());
        let requested: i64 = pods.map(|pod| pod.requests.get(&limited.name)).sum();
        requested > limited.allocatable
    })
}

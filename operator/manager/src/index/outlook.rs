//! Signals and outlook of nodes: found by rules at each receipt of a node, and with an effect once
//! their hold time is over.

use std::mem;
use std::sync::Arc;

use lockstep_api::ids::NodeName;
use lockstep_lifecycle::nodes::NodeInfo;
use lockstep_model::parse::partial::PartialNode;

use super::state::{State, Touched, set_state};

impl State {
    /// Reads the signals of a received node.
    pub(super) fn read_signals(
        &mut self,
        node: &NodeName,
        received: &PartialNode,
        info: &mut NodeInfo,
    ) {
        let first = !self.nodes.contains_key(node);
        let found = received.find_signals(&self.signals.rules);
        if found.is_empty() {
            self.signals.remove(node.as_str());
        } else {
            self.signals.nodes.entry(node.clone()).or_default().found = found;
        }
        let now = self.received_at;
        self.signals.renew(node, &self.model, first, now);
        self.signals.show(node, info, now);
    }

    /// Applies ended hold times, passed deadlines and the mode to all nodes with signals.
    pub(super) fn follow_signals(&mut self, touched: &mut Touched) {
        let now = self.received_at;
        let before = mem::replace(&mut self.signals.followed, now);
        let names: Vec<NodeName> = self.signals.nodes.keys().cloned().collect();
        for name in &names {
            self.follow_signals_of(name, touched);
            let node = self.signals.nodes.get(name);
            let mut ends = node.into_iter().flat_map(|node| &node.signals);
            if ends.any(|signal| before < signal.counts_from && signal.counts_from <= now) {
                self.touch_node(name, touched);
            }
        }
    }

    /// Renews the signals of a node about resources, after a change of its pods.
    pub(super) fn follow_requests(&mut self, node: &NodeName, touched: &mut Touched) {
        let signals = self.signals.nodes.get(node);
        if signals.is_some_and(|signals| signals.found.iter().any(|f| !f.limited.is_empty())) {
            self.follow_signals_of(node, touched);
        }
    }

    fn follow_signals_of(&mut self, node: &NodeName, touched: &mut Touched) {
        let now = self.received_at;
        self.signals.renew(node, &self.model, false, now);
        let Some(before) = self.nodes.get(node) else {
            return;
        };
        let mut info = NodeInfo::clone(before);
        self.signals.show(node, &mut info, now);
        if **before == info {
            return;
        }
        touched.scheduler |= set_state(&mut self.model, node, info.state);
        touched.signals = true;
        self.touch_node(node, touched);
        self.nodes.insert(node.clone(), Arc::new(info));
    }
}

//! Nodes with signals, and the gangs that run there.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::PodGroup;
use lockstep_api::node_signal::SignalLevel;
use lockstep_api::words::count;
use lockstep_model::parse::partial::PartialNode;
use lockstep_scheduler::config::NodeHealthConfig;
use serde::Serialize;

use crate::view::age::{age, span};
use crate::view::table::{Cell, Table, Tone};
use crate::view::{RenderOptions, View};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// `nodeHealth.mode` of the manager. Absent if its configuration cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<lockstep_api::NodeHealthMode>,
    /// Sorted by node and name.
    pub signals: Vec<SignalOfNode>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalOfNode {
    pub node: String,
    pub signal: String,
    pub level: SignalLevel,
    /// Time of the last transition of its condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// End of the hold time, if the signal is in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts_from: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DateTime<Utc>>,
    /// Workloads of the gangs on the node, with their namespaces.
    pub workloads: BTreeSet<String>,
}

/// Finds the signals of nodes. `config`: of the manager, if readable.
pub fn nodes(
    nodes: &[PartialNode],
    groups: &[PodGroup],
    config: Option<&NodeHealthConfig>,
    now: DateTime<Utc>,
) -> NodeReport {
    let rules = config.map_or_else(
        || NodeHealthConfig::default().signal_rules(),
        NodeHealthConfig::signal_rules,
    );
    let workloads = workloads_by_node(groups);
    let mut signals = Vec::new();
    for node in nodes {
        let name = node.metadata.name.clone().unwrap_or_default();
        for found in node.find_signals(&rules) {
            let Some(signal) = found.received(None, true, now) else {
                continue;
            };
            signals.push(SignalOfNode {
                node: name.clone(),
                signal: signal.name,
                level: signal.level,
                since: found.transition().map(|at| at.min(now)),
                counts_from: found
                    .transition()
                    .and(Some(signal.counts_from))
                    .filter(|at| *at > now),
                deadline: signal.deadline,
                workloads: workloads.get(&*name).cloned().unwrap_or_default(),
            });
        }
    }
    signals.sort_by(|a, b| (&a.node, &a.signal).cmp(&(&b.node, &b.signal)));
    let mode = config.map(|config| config.mode);
    NodeReport { mode, signals }
}

fn workloads_by_node(groups: &[PodGroup]) -> BTreeMap<&str, BTreeSet<String>> {
    let mut out: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for group in groups {
        let namespace = group.metadata.namespace.as_deref().unwrap_or_default();
        let workload = format!("{namespace}/{}", group.spec.workload_ref.workload_name);
        let placement = group.status.iter().filter_map(|s| s.placement.as_ref());
        for node in placement.flat_map(|placement| &placement.nodes) {
            out.entry(&node.node).or_default().insert(workload.clone());
        }
    }
    out
}

impl View for NodeReport {
    fn screen(&self, options: &RenderOptions) -> String {
        if self.signals.is_empty() {
            return "no node has a signal\n".to_owned();
        }
        let nodes: BTreeSet<&str> = self.signals.iter().map(|s| s.node.as_str()).collect();
        let nodes = count(nodes.len(), "node");
        let mode = self
            .mode
            .map(|mode| format!(", mode {mode:?}"))
            .unwrap_or_default();
        let mut table = Table::new(&["NODE", "SIGNAL", "LEVEL", "SINCE", "DEADLINE", "WORKLOADS"]);
        for signal in &self.signals {
            let left = |at: DateTime<Utc>| format!("in {}", span(at - options.now));
            let since = match signal.counts_from {
                Some(at) => format!("counts {}", left(at)),
                None => age(signal.since, options.now),
            };
            let workloads: Vec<&str> = signal.workloads.iter().map(String::as_str).collect();
            table.row([
                signal.node.clone().into(),
                signal.signal.clone().into(),
                Cell::new(signal.level.as_str(), tone(signal.level)),
                since.into(),
                signal.deadline.map_or_else(|| "-".to_owned(), left).into(),
                workloads.join(",").into(),
            ]);
        }
        format!("{nodes} with signals{mode}\n\n{}", table.render(options))
    }

    fn names(&self) -> Vec<String> {
        let names = self.signals.iter().map(|s| format!("node/{}", s.node));
        let names: BTreeSet<String> = names.collect();
        names.into_iter().collect()
    }
}

fn tone(level: SignalLevel) -> Tone {
    match level {
        SignalLevel::Suspect => Tone::Plain,
        SignalLevel::Leaving => Tone::Busy,
        SignalLevel::Faulty => Tone::Bad,
    }
}

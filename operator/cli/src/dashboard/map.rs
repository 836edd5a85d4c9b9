//! Who is where, where are holes, and which part of the cluster is faulty?

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use kube::ResourceExt;
use lockstep_api::PodGroup;
use lockstep_api::node_agent::capabilities;
use lockstep_api::scheduling::Victim;
use lockstep_model::Pod;
use serde_json::{Map, Value, json};

use super::incidents::priority;
use super::occupancy::{UsedNode, intents, occupation};
use super::view::{ClusterView, name_of, path_of};
use crate::objects::owner;

/// Levels that are shown if nodes have their labels, outermost first.
const KNOWN_LEVELS: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/block",
    "topology.kubernetes.io/rack",
    "nvidia.com/gpu.clique",
];

pub fn map(view: &ClusterView, now: DateTime<Utc>) -> Value {
    let used = occupation(view, now);
    let nodes = used.nodes.unwrap_or_default();
    let levels = levels(view, &nodes);
    let agents = agents(view);
    let incidents = view.incidents_by_node(now - TimeDelta::hours(24));
    let drawn = nodes.iter().map(|(name, node)| {
        let path = levels.iter();
        let path: Vec<&str> = path.map(|l| node.labels.get(l).map_or("", |v| v)).collect();
        let parts = node.parts.iter().map(|part| {
            let number = part.workload.as_ref().and_then(|w| view.number(w));
            json!([number, part.amount, part.state.letter()])
        });
        let agent = agents.as_ref();
        let value = json!({
            "path": path,
            "size": node.size,
            "state": node.state,
            "use": parts.collect::<Vec<_>>(),
            "incidents": incidents.get(name.as_str()).unwrap_or(&0),
            "agent": agent.map(|tiers| tiers.get(name).unwrap_or(&"none")),
            "until": node.until(),
            "signal": node.signal,
        });
        (name.clone(), value)
    });
    let drawn: Map<String, Value> = drawn.collect();
    let workloads = view.workloads().iter().filter_map(|workload| {
        let status = workload.status.as_ref();
        let value = json!({
            "name": path_of(workload),
            "namespace": workload.namespace(),
            "priority": priority(view.groups(), workload),
            "phase": status.and_then(|s| s.phase),
        });
        Some((view.number(&name_of(workload))?.to_string(), value))
    });
    json!({
        "resource": used.counted.resource,
        "perNode": nodes.values().map(|n| n.size).max().unwrap_or(0),
        "levels": levels,
        "nodes": drawn,
        "workloads": workloads.collect::<Map<String, Value>>(),
        "preemptions": preemptions(view),
    })
}

/// Preemptions in progress. Of a victim that the reader may not read, neither workload nor nodes
/// are known.
fn preemptions(view: &ClusterView) -> Vec<Value> {
    let groups = view.groups().iter();
    let groups = groups.filter_map(|g| Some((g.metadata.uid.as_deref()?, g)));
    let groups: BTreeMap<&str, &PodGroup> = groups.collect();
    let workload = |g: &PodGroup| view.number(&name_of(owner(view.workloads(), g)?));
    let victim = |unit: &Victim| {
        let group = groups.get(unit.uid.as_str()).copied();
        let nodes: Vec<&str> = group.map_or_else(
            || {
                let pods = view.pods.iter().flatten();
                let own = pods.filter(|p| p.uid.as_str() == unit.uid);
                own.filter_map(Pod::holds).collect()
            },
            nodes_of,
        );
        json!({"workload": group.and_then(workload), "nodes": nodes})
    };
    let all = intents(view).map(|(group, intent)| {
        json!({
            "preemptor": workload(group),
            "nodes": nodes_of(group),
            "victims": intent.victims.iter().map(victim).collect::<Vec<_>>(),
            "cost": intent.cost,
            "atLeast": intent.at_least,
            "proven": intent.proven,
            "nextBest": intent.next_best,
        })
    });
    all.collect()
}

fn nodes_of(group: &PodGroup) -> Vec<&str> {
    let placement = group.status.iter().filter_map(|s| s.placement.as_ref());
    let nodes = placement.flat_map(|p| &p.nodes);
    nodes.map(|on| on.node.as_str()).collect()
}

/// Keys of the levels that nodes have: those of the workload with most levels, and known ones.
fn levels(view: &ClusterView, nodes: &BTreeMap<String, UsedNode>) -> Vec<String> {
    let named = view.workloads().iter().map(|w| w.spec.scheduling.levels());
    let mut named: Vec<Vec<String>> = named
        .map(|levels| levels.into_iter().map(|l| l.key).collect())
        .collect();
    named.sort_by_key(|levels| std::cmp::Reverse(levels.len()));
    let known = KNOWN_LEVELS.map(str::to_owned).to_vec();
    let mut seen = BTreeSet::new();
    let present = |key: &String| nodes.values().any(|n| n.labels.contains_key(key));
    let all = std::iter::once(known).chain(named).flatten();
    let mut levels: Vec<String> = all
        .filter(|key| seen.insert(key.clone()) && present(key))
        .collect();
    // The outermost level has the fewest values.
    levels.sort_by_cached_key(|key| {
        let values = nodes.values().filter_map(|n| n.labels.get(key));
        values.collect::<BTreeSet<_>>().len()
    });
    levels
}

/// How members restart on each node with an agent: by its supervisor, or by its agent alone.
pub fn agents(view: &ClusterView) -> Option<BTreeMap<String, &'static str>> {
    let tiers = view.agents.as_ref()?.iter().map(|agent| {
        let status = agent.status.as_ref();
        let supervises = status.is_some_and(|s| s.has(capabilities::SUPERVISE));
        let tier = if supervises { "Supervised" } else { "Agent" };
        (agent.name_any(), tier)
    });
    Some(tiers.collect())
}

//! Is the installation healthy?

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::frame::unreadable;
use super::map::agents;
use super::needs::without_agent;
use super::occupancy::signals;
use super::view::{ClusterView, PageReads};

pub fn health(view: &ClusterView, reads: &PageReads, now: DateTime<Utc>) -> Value {
    let mut by_tier: BTreeMap<&str, usize> = BTreeMap::new();
    for tier in agents(view).unwrap_or_default().into_values() {
        *by_tier.entry(tier).or_default() += 1;
    }
    let mut by_version: BTreeMap<&str, usize> = BTreeMap::new();
    for agent in view.agents.iter().flatten() {
        let version = agent.status.as_ref().map(|s| s.agent_version.as_str());
        *by_version.entry(version.unwrap_or_default()).or_default() += 1;
    }
    json!({
        "doctor": reads.doctor,
        "agents": {
            "byTier": by_tier,
            "byVersion": by_version,
            "missing": without_agent(view),
        },
        "nodes": signals(view, now),
        "configuration": view.configuration.as_ref().map(|(_, text)| text),
        "unreadable": unreadable(view),
    })
}

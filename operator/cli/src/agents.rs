//! Node agents and their pods: nodes on which members restart in place.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_api::NodeAgent;
use lockstep_api::time::utc;
use lockstep_api::words::count;
use serde::Serialize;

use crate::objects::{holds, node};
use crate::view::age::age;
use crate::view::brief::Brief;
use crate::view::table::{Cell, Table, Tone};
use crate::view::{RenderOptions, View};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentReport {
    /// Sorted by node.
    pub agents: Vec<AgentOfNode>,
}

impl AgentReport {
    pub(crate) fn nodes_in(&self, state: AgentState) -> impl Iterator<Item = &str> {
        let agents = self.agents.iter().filter(move |a| a.state == state);
        agents.map(|a| a.node.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentOfNode {
    pub node: String,
    pub state: AgentState,
    /// Number of members whose arrivals the agent reports.
    pub members: usize,
    pub version: String,
    pub runtime: String,
    /// Time of the last reported container exit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_report: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum AgentState {
    /// The pod is ready: members of the node restart in place.
    Ready,
    NotReady,
    /// The NodeAgent exists, but no pod: members of the node are recreated.
    Gone,
    /// The pod has not created its NodeAgent yet.
    Silent,
    /// The user may not list pods.
    Unknown,
}

/// Joins NodeAgents with the agents' pods. `None`: the user may not list pods.
pub fn agents(objects: &[NodeAgent], pods: Option<&[Pod]>) -> AgentReport {
    // The replacement of a terminating pod takes precedence.
    let mut by_node: BTreeMap<&str, &Pod> = BTreeMap::new();
    for pod in pods.unwrap_or_default() {
        let Some(node) = node(pod) else { continue };
        let ending = pod.metadata.deletion_timestamp.is_some();
        if !ending || !by_node.contains_key(node) {
            by_node.insert(node, pod);
        }
    }
    let names: BTreeSet<String> = objects
        .iter()
        .map(ResourceExt::name_any)
        .chain(by_node.keys().map(|n| (*n).to_owned()))
        .collect();
    let agents = names.into_iter().map(|node| {
        let object = objects.iter().find(|o| o.name_any() == node);
        let pod = by_node.get(node.as_str()).copied();
        let state = match pods {
            Some(_) => state(object, pod),
            None => AgentState::Unknown,
        };
        agent(node, state, object, pod)
    });
    AgentReport {
        agents: agents.collect(),
    }
}

fn state(object: Option<&NodeAgent>, pod: Option<&Pod>) -> AgentState {
    match (object, pod) {
        (None, _) => AgentState::Silent,
        (_, None) => AgentState::Gone,
        (_, Some(pod)) if holds(pod, "Ready") => AgentState::Ready,
        (_, Some(_)) => AgentState::NotReady,
    }
}

fn agent(
    node: String,
    state: AgentState,
    object: Option<&NodeAgent>,
    pod: Option<&Pod>,
) -> AgentOfNode {
    let status = object.and_then(|o| o.status.clone()).unwrap_or_default();
    AgentOfNode {
        node,
        state,
        members: status.arrivals.iter().map(|a| a.pods.len()).sum(),
        version: status.agent_version,
        runtime: status.runtime,
        last_report: status.reports.iter().map(|r| r.time).max(),
        pod: pod.map(ResourceExt::name_any),
        since: pod.and_then(|p| utc(p.metadata.creation_timestamp.as_ref()?)),
    }
}

impl View for AgentReport {
    fn screen(&self, options: &RenderOptions) -> String {
        if self.agents.is_empty() {
            return "no node agents: failed gangs restart with new pods; install agents with `kubectl apply -k config/overlays/full`\n".to_owned();
        }
        let mut table = Table::new(&[
            "NODE",
            "STATE",
            "MEMBERS",
            "VERSION",
            "LAST REPORT",
            "+RUNTIME",
            "+POD",
            "AGE",
        ]);
        let states = [
            AgentState::Ready,
            AgentState::NotReady,
            AgentState::Gone,
            AgentState::Silent,
            AgentState::Unknown,
        ];
        let counts = states.map(|state| (self.nodes_in(state).count(), state.words()));
        let counts = counts.iter().filter(|(n, _)| *n > 0);
        let counts: Vec<String> = counts.map(|(n, state)| format!("{n} {state}")).collect();
        let all = count(self.agents.len(), "agent");
        let mut out = format!("{all}: {}\n", counts.join(", "));
        let agents = Brief::of(&self.agents, options.wide, |agent| {
            agent.state == AgentState::Ready
        });
        for agent in &agents.rows {
            let report = agent
                .last_report
                .map(|at| format!("{} ago", age(Some(at), options.now)));
            table.row([
                agent.node.clone().into(),
                Cell::new(agent.state.words(), agent.state.tone()),
                agent.members.to_string().into(),
                agent.version.clone().into(),
                report.unwrap_or_default().into(),
                agent.runtime.clone().into(),
                agent.pod.clone().unwrap_or_default().into(),
                age(agent.since, options.now).into(),
            ]);
        }
        if !table.is_empty() {
            out.push('\n');
            out.push_str(&table.render(options));
        }
        out.push_str(&agents.note("agent", "Ready").unwrap_or_default());
        out
    }

    fn names(&self) -> Vec<String> {
        let name = |a: &AgentOfNode| format!("nodeagent.training.lockstep.dev/{}", a.node);
        self.agents.iter().map(name).collect()
    }
}

impl AgentState {
    fn words(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::NotReady => "NotReady",
            Self::Gone => "Gone",
            Self::Silent => "Silent",
            Self::Unknown => "Unknown",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Self::Ready => Tone::Good,
            Self::NotReady | Self::Silent => Tone::Busy,
            Self::Gone => Tone::Bad,
            Self::Unknown => Tone::Plain,
        }
    }
}

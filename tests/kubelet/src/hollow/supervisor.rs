//! State of whole nodes: whether they are up and have an agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, Client};
use lockstep_agent::store::MemoryStore;
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tracing::error;

use super::agents::{self, Agents};
use super::args::Options;
use super::nodes::{self, CONCURRENCY, DEADLINE, NodeInfo};
use crate::clock::Clock;
use crate::runtime::Runtime;

/// A node and the task that runs it.
pub(super) struct Node {
    pub(super) info: Arc<NodeInfo>,
    pub(super) runtime: Arc<dyn Runtime>,
    /// Records of its agent, which survive the agent as a file would.
    pub(super) store: MemoryStore,
}

/// Switches nodes and agents on and off.
pub(super) struct Supervisor {
    client: Client,
    options: Options,
    clock: Clock,
    nodes: Vec<Node>,
    pub(super) agents: Agents,
    running: Mutex<Running>,
}

/// Running agents.
#[derive(Default)]
struct Running {
    tasks: JoinSet<()>,
    by_node: BTreeMap<usize, AbortHandle>,
}

impl Supervisor {
    pub(super) fn new(
        client: Client,
        options: Options,
        clock: Clock,
        nodes: Vec<Node>,
        agents: Agents,
    ) -> Self {
        Self {
            client,
            options,
            clock,
            nodes,
            agents,
            running: Mutex::default(),
        }
    }

    /// Number of a node.
    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|n| n.info.name == name)
    }

    /// Runtime of a node.
    pub(super) fn runtime(&self, node: usize) -> &Arc<dyn Runtime> {
        &self.nodes[node].runtime
    }

    /// Name and runtime of every node.
    pub(super) fn runtimes(&self) -> impl Iterator<Item = (&str, &Arc<dyn Runtime>)> {
        self.nodes
            .iter()
            .map(|n| (n.info.name.as_str(), &n.runtime))
    }

    /// Starts the agents of all nodes that have one, each after its pod exists, with bounded
    /// concurrency as in the `DaemonSet` controller.
    pub(super) async fn start_agents(&self) -> Result<()> {
        let with_agent =
            (0..self.nodes.len()).filter(|i| self.options.has_agent(&self.nodes[*i].info.name));
        stream::iter(with_agent.map(|i| self.start_agent(i)))
            .buffer_unordered(CONCURRENCY)
            .try_collect::<()>()
            .await
    }

    fn spawn_agent(&self, i: usize) {
        let node = &self.nodes[i];
        let agent =
            self.agents
                .clone()
                .run(node.info.clone(), node.runtime.clone(), node.store.clone());
        let name = node.info.name.clone();
        let mut running = self.running.lock();
        while running.tasks.try_join_next().is_some() {}
        let task = running.tasks.spawn(async move {
            if let Err(error) = Box::pin(agent).await {
                error!(
                    node = name,
                    error = format!("{error:#}"),
                    "the agent cannot run"
                );
            }
        });
        if let Some(before) = running.by_node.insert(i, task) {
            before.abort();
        }
    }

    /// Ends a node's agent and deletes its pod.
    pub(super) async fn stop_agent(&self, i: usize) -> Result<()> {
        if let Some(task) = self.running.lock().by_node.remove(&i) {
            task.abort();
        }
        let namespace = self
            .options
            .agent_pods
            .as_deref()
            .context("nodes have no agents: no --agent-pods")?;
        let api = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let name = agents::pod_name(&self.nodes[i].info.name);
        match timeout(DEADLINE, api.delete(&name, &DeleteParams::default())).await? {
            Err(kube::Error::Api(e)) if e.is_not_found() => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// Starts a node's agent and creates its pod.
    pub(super) async fn start_agent(&self, i: usize) -> Result<()> {
        let namespace = self
            .options
            .agent_pods
            .as_deref()
            .context("nodes have no agents: no --agent-pods")?;
        let account = &self.options.agent_account;
        agents::make_pod(&self.client, namespace, account, &self.nodes[i].info.name).await?;
        self.spawn_agent(i);
        Ok(())
    }

    /// Makes a node silent.
    pub(super) fn vanish(&self, i: usize) {
        self.nodes[i].info.up.store(false, Ordering::Relaxed);
        self.running
            .lock()
            .by_node
            .get(&i)
            .inspect(|task| task.abort());
    }

    /// Returns a silent node.
    pub(super) async fn come_back(&self, i: usize) -> Result<()> {
        let info = &self.nodes[i].info;
        info.up.store(true, Ordering::Relaxed);
        nodes::come_back(&self.client, &self.options, info, self.clock.now()).await?;
        let had_agent = self.running.lock().by_node.contains_key(&i);
        if had_agent {
            self.spawn_agent(i);
        }
        Ok(())
    }
}

//! The agents of the nodes: the real library with a separate identity per node, over the simulated
//! runtime.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use clap::Parser;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client, Config};
use lockstep_agent::health::Readiness;
use lockstep_agent::metrics::Metrics;
use lockstep_agent::orders::{Orders, follow};
use lockstep_agent::runtime::{Runtime as AgentRuntime, RuntimeError, Sandbox};
use lockstep_agent::store::MemoryStore;
use lockstep_agent::supervisors::Supervisors;
use lockstep_agent::{Agent, AgentArgs};
use lockstep_api::names::labels;
use lockstep_common::connection;
use lockstep_node::{NodePod, SupervisorMessage};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use super::args::Options;
use super::deliveries::Deliveries;
use super::nodes::{DEADLINE, NodeInfo};
use crate::clock::Clock;
use crate::runtime::Runtime;

/// Name of the pods of agents, and the value of their label `app.kubernetes.io/name`.
const NAME: &str = "lockstep-agent";
/// Lifetime of the agents' tokens: longer than a test or a benchmark.
const TOKEN: Duration = Duration::from_hours(24);

/// The runtime of a node for its agent.
struct AgentView {
    runtime: Arc<dyn Runtime>,
    changes: watch::Receiver<()>,
}

impl AgentRuntime for AgentView {
    async fn version(&mut self) -> Result<String, RuntimeError> {
        Ok("hollow 1".into())
    }

    async fn list(&mut self) -> Result<Vec<Sandbox>, RuntimeError> {
        let ours = self
            .runtime
            .table()
            .look(|pod| pod.labels.contains_key(labels::WORKLOAD_UID));
        Ok(ours.into_iter().map(Sandbox::from).collect())
    }

    fn stop(&self, container_id: &str) -> BoxFuture<'static, Result<(), RuntimeError>> {
        self.runtime.kill(container_id);
        ready(Ok(())).boxed()
    }

    async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            // The process of the node has ended.
            std::future::pending::<()>().await;
        }
    }
}

/// The supervisors of a node for its agent. Their messages change the node's table, which wakes the
/// agent's loop as containers do.
struct SupervisorsView {
    runtime: Arc<dyn Runtime>,
}

impl Supervisors for SupervisorsView {
    fn out_of_reach(&self) -> Option<String> {
        None
    }

    fn observe(&mut self, pods: &mut [NodePod]) {
        self.runtime.link(true);
        for pod in pods.iter_mut().filter(|p| p.supervised) {
            pod.supervisor = self.runtime.supervisor(&pod.uid);
        }
    }

    fn observe_again(&mut self, pods: &mut [NodePod]) {
        self.observe(pods);
    }

    fn send(&mut self, messages: &[SupervisorMessage]) -> Option<Duration> {
        for SupervisorMessage { pod_uid, command } in messages {
            self.runtime.command(pod_uid, command);
        }
        None
    }

    async fn changed(&mut self) {
        std::future::pending::<()>().await;
    }
}

impl Drop for SupervisorsView {
    fn drop(&mut self) {
        self.runtime.link(false);
    }
}

/// Creates the agents of a process.
#[derive(Clone)]
pub(super) struct Agents {
    /// Configuration for the API server, without identity.
    anonymous: Config,
    /// The kubelets' client, which requests the agents' tokens.
    kubelets: Client,
    account: String,
    args: Vec<String>,
    orders: watch::Sender<Orders>,
    own_watches: bool,
    clock: Clock,
    pub(super) deliveries: Deliveries,
}

impl Agents {
    pub(super) fn new(
        anonymous: Config,
        kubelets: Client,
        options: &Options,
        orders: watch::Sender<Orders>,
        clock: Clock,
    ) -> Result<Self> {
        let args = options
            .agent_args
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let agents = Self {
            anonymous,
            kubelets,
            account: options.agent_account.clone(),
            args,
            orders,
            own_watches: options.own_watches,
            clock,
            deliveries: Deliveries::default(),
        };
        agents.parse("node").context("arguments of the agents")?;
        Ok(agents)
    }

    fn parse(&self, node: &str) -> Result<AgentArgs> {
        let own = ["--node-name", node].map(str::to_owned);
        let name = [NAME.to_owned()];
        Ok(AgentArgs::try_parse_from(
            name.into_iter().chain(self.args.iter().cloned()).chain(own),
        )?)
    }

    /// Runs the agent of a node until dropped. Its records are in `store`.
    pub(super) async fn run(
        self,
        node: Arc<NodeInfo>,
        runtime: Arc<dyn Runtime>,
        store: MemoryStore,
    ) -> Result<()> {
        let args = self.parse(&node.name)?;
        let client = self.client(Some(&pod_name(&node.name))).await?;
        let changes = runtime.table().subscribe();
        let clock = self.clock;
        let supervisors = args.supervise.then(|| SupervisorsView {
            runtime: runtime.clone(),
        });
        let orders = if self.own_watches {
            watch::Sender::default()
        } else {
            self.orders
        };
        let deliveries = self.deliveries.follow(orders.subscribe(), clock);
        let readiness = Readiness::default();
        let agent = Agent {
            node: args.node_name.clone(),
            runtime: AgentView { runtime, changes },
            store,
            supervisors,
            client: client.clone(),
            orders: orders.clone(),
            now: Arc::new(move || -> DateTime<Utc> { clock.now() }),
            debounce: args.debounce(),
            metrics: Metrics::default(),
            readiness: readiness.clone(),
        };
        let orders = async {
            if self.own_watches {
                follow(client, &node.name, orders, &readiness).await;
            }
            std::future::pending().await
        };
        tokio::select! {
            never = orders => never,
            never = deliveries => match never {},
            never = agent.run() => match never {},
        }
    }

    /// A client of the agents' service account with a separate connection, as in the program. Its
    /// token is bound to `pod`, as if requested by a kubelet, and contains the pod's node.
    pub(super) async fn client(&self, pod: Option<&str>) -> Result<Client> {
        let account = self.account.split_once(':');
        let (namespace, name) = account.context("--agent-account is NAMESPACE:NAME")?;
        let bound = pod.map(|pod| json!({"apiVersion": "v1", "kind": "Pod", "name": pod}));
        let request = serde_json::from_value(json!({
            "metadata": {},
            "spec": {"audiences": [], "expirationSeconds": TOKEN.as_secs(), "boundObjectRef": bound},
        }))?;
        let accounts = Api::<ServiceAccount>::namespaced(self.kubelets.clone(), namespace);
        let post = PostParams::default();
        let token = timeout(
            DEADLINE,
            accounts.create_token_request(name, &post, &request),
        );
        let token = token.await?.context("a token of the agents' account")?;
        let mut config = self.anonymous.clone();
        let token = token.status.and_then(|s| s.token);
        config.auth_info.token = Some(token.context("a token")?.into());
        Ok(connection::connect_http2(config)?)
    }
}

/// Creates the agent's pod on a node, as the `DaemonSet` controller would.
pub(super) async fn make_pod(
    client: &Client,
    namespace: &str,
    account: &str,
    node: &str,
) -> Result<()> {
    let (_, account) = account
        .split_once(':')
        .context("--agent-account is NAMESPACE:NAME")?;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": pod_name(node), "labels": {"app.kubernetes.io/name": NAME}},
        "spec": {
            "nodeName": node,
            "serviceAccountName": account,
            // The agent itself runs in this process. If containers are processes, this command is
            // its placeholder.
            "containers": [{"name": "agent", "image": NAME, "command": ["sleep", "infinity"]}],
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
        },
    }))?;
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let mut last = None;
    // The pod of an earlier agent can still be terminating.
    for _ in 0..50 {
        match timeout(DEADLINE, api.create(&PostParams::default(), &pod)).await? {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(e)) if e.is_already_exists() => {
                let found = timeout(DEADLINE, api.get_opt(&pod_name(node))).await??;
                if found.is_some_and(|p| p.metadata.deletion_timestamp.is_none()) {
                    return Ok(());
                }
                last = Some(kube::Error::Api(e));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(e) => {
                return Err(e)
                    .with_context(|| format!("cannot make the pod of the agent on {node}"));
            }
        }
    }
    Err(last.map_or_else(|| anyhow::anyhow!("no attempt"), Into::into))
}

/// Name of the pod of a node's agent.
pub(super) fn pod_name(node: &str) -> String {
    format!("{NAME}-{node}")
}

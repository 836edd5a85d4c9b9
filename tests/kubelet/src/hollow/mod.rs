//! Any number of nodes in a process: real node, Lease and pod objects, run by the kubelet model.

mod agents;
mod args;
mod control;
mod deliveries;
mod kubelets;
mod nodes;
mod pods;
#[cfg(test)]
mod replay;
mod supervisor;
#[cfg(test)]
mod tests;
mod writes;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use anyhow::{Context, Result};
use kube::{Client, Config};
use lockstep_agent::health::Readiness;
use lockstep_agent::orders;
use lockstep_agent::store::MemoryStore;
use lockstep_common::api_server::kube_config;
use lockstep_model::pods::resources::Resources;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::info;

pub use args::{Options, Profile, RuntimeKind};

use crate::clock::Clock;
use crate::model::KubeletConfig;
use crate::runtime::subprocess::Host;
use crate::runtime::{Addresses, Changed, Cri, Reaper, Runtime, Simulated, Subprocess, Table};
use kubelets::{Kubelet, Kubelets};
use nodes::NodeInfo;
use supervisor::{Node, Supervisor};

/// Maximum number of events between the watch and the kubelets.
const QUEUE: usize = 1024;

/// Runs the nodes until a part of the process fails. Dropping the future stops everything.
pub async fn run(options: Options, clock: Clock) -> Result<()> {
    let config = config(&options).await?;
    let client = Client::try_from(config.clone())?;
    let anonymous = without_identity(config);

    let (change, changes) = mpsc::unbounded_channel();
    let nodes = make_nodes(&options, &change, clock)?;
    let infos: Vec<Arc<NodeInfo>> = nodes.iter().map(|n| n.info.clone()).collect();
    let kubelets = kubelets(&options, &nodes)?;

    let listener = TcpListener::bind(options.control)
        .await
        .context("control interface")?;
    let address = listener.local_addr()?;
    nodes::register(&client, &options, &infos, clock).await?;
    info!(nodes = infos.len(), "nodes registered");

    let mut tasks = JoinSet::new();
    let (event, events) = mpsc::channel(QUEUE);
    let (command, commands) = mpsc::channel(QUEUE);
    let numbers = infos
        .iter()
        .enumerate()
        .map(|(i, n)| (n.name.clone(), i))
        .collect();
    tasks.spawn(pods::follow(client.clone(), numbers, event));
    tasks.spawn(
        Kubelets::new(kubelets, options.profile().relist, clock, client.clone())
            .run(events, changes, commands),
    );
    tasks.spawn(nodes::keep_leases(
        client.clone(),
        options.clone(),
        infos.clone(),
        clock,
    ));
    tasks.spawn(nodes::keep_ready(
        client.clone(),
        options.clone(),
        infos,
        clock,
    ));

    let orders = watch::Sender::new(orders::Orders::default());
    let shared = orders.clone();
    let agents = agents::Agents::new(anonymous, client.clone(), &options, shared, clock)?;
    if options.agent_pods.is_some() && !options.own_watches {
        // The identity of any agent can read orders. One watch serves all.
        let reader = agents.client(None).await?;
        tasks.spawn(async move {
            match orders::follow(reader, "hollow", orders, &Readiness::default()).await {}
        });
    }
    let supervisor = Arc::new(Supervisor::new(client, options, clock, nodes, agents));
    supervisor.start_agents().await?;
    tasks.spawn(async move {
        let router = control::router(supervisor, command);
        let served = axum::serve(listener, router).await;
        tracing::error!(?served, "control interface ended");
    });

    writeln!(std::io::stdout(), "hollow: ready {address}")?;
    match tasks.join_next().await {
        Some(Err(error)) => Err(error).context("a part of the process failed"),
        _ => anyhow::bail!("a part of the process ended"),
    }
}

async fn config(options: &Options) -> Result<Config> {
    let mut config = kube_config(options.kubeconfig.as_deref()).await?;
    // Every call has its own deadline and retries.
    config.default_retry = false;
    if let Some(token) = &options.token {
        config = without_identity(config);
        config.auth_info.token = Some(token.clone().into());
    }
    Ok(config)
}

fn without_identity(mut config: Config) -> Config {
    config.auth_info = kube::config::AuthInfo::default();
    config
}

fn make_nodes(
    options: &Options,
    change: &mpsc::UnboundedSender<Changed>,
    clock: Clock,
) -> Result<Vec<Node>> {
    let make = maker(options, clock)?;
    let make = |(i, name): (usize, String)| {
        anyhow::Ok(Node {
            runtime: make(&name, Table::new(i, change.clone()))?,
            info: Arc::new(nodes::node_info(options, i, name)),
            store: MemoryStore::default(),
        })
    };
    options.names().into_iter().enumerate().map(make).collect()
}

/// Creates the runtime of a node by name.
type Maker = Box<dyn Fn(&str, Table) -> Result<Arc<dyn Runtime>>>;

fn maker(options: &Options, clock: Clock) -> Result<Maker> {
    let profile = options.profile();
    let folder = || {
        let folder = options.work_dir.as_ref().context("--work-dir is missing")?;
        Ok::<_, anyhow::Error>(std::path::absolute(folder)?)
    };
    let addresses = Arc::new(Addresses::of_this_process());
    Ok(match options.runtime {
        RuntimeKind::Simulated => {
            let ips = Arc::new(AtomicU32::new(0));
            Box::new(move |name, table| {
                let ips = ips.clone();
                let runtime = Simulated::new(name, table, profile.clone(), clock, ips);
                Ok(Arc::new(runtime))
            })
        }
        RuntimeKind::Subprocess => {
            let reaper = Arc::new(Reaper::start().context("cannot start a shell")?);
            let host = Host {
                folder: folder()?,
                reaper,
                addresses,
            };
            Box::new(move |name, table| {
                let host = host.clone();
                let runtime = Subprocess::new(name, table, profile.clone(), clock, host);
                Ok(Arc::new(runtime))
            })
        }
        RuntimeKind::Cri => {
            let folder = folder()?;
            Box::new(move |name, table| {
                let (root, addresses) = (folder.join(name), addresses.clone());
                Ok(Arc::new(Cri::new(name, &root, table, clock, addresses)?))
            })
        }
    })
}

fn kubelets(options: &Options, nodes: &[Node]) -> Result<Vec<Kubelet>> {
    let amounts = nodes::resources(options);
    let quantities = amounts
        .into_iter()
        .map(|(name, amount)| {
            (
                name,
                k8s_openapi::apimachinery::pkg::api::resource::Quantity(amount),
            )
        })
        .collect();
    let allocatable = Resources::parse(&quantities).context("resources of the nodes")?;
    let make = |node: &Node| Kubelet {
        info: node.info.clone(),
        runtime: node.runtime.clone(),
        config: KubeletConfig {
            restart_rules: options.minor() >= 35,
            restart_all: node.info.declares_restart_all,
            backoff_scale: options.backoff_scale,
            resync: options.profile().relist,
        },
        allocatable: allocatable.clone(),
        reject: None,
    };
    Ok(nodes.iter().map(make).collect())
}

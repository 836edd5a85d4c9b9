//! The objects of the node agents.

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use lockstep_api::restart_order::DomainOrder;
use lockstep_api::{NodeAgent, RestartOrder, RestartOrderSpec};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::process::{Launch, Process, free_port, workspace_binary};
use lockstep_cluster::scenario::PATIENCE;
use lockstep_cluster::{Cluster, eventually, http, scenario};
use lockstep_e2e::{cluster, fresh, patient};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_object_has_no_managed_fields_and_is_deleted_only_with_its_node() -> Result<()> {
    scenario(
        cluster().await?,
        "agents",
        &Shape {
            nodes: 2,
            ..Shape::default()
        },
        async |t| {
            let (agents, nodes): (Api<NodeAgent>, Api<Node>) =
                (Api::all(t.client.clone()), Api::all(t.client.clone()));
            let [gone, stays] = t.nodes.names() else {
                anyhow::bail!("{:?}", t.nodes.names())
            };
            eventually(
                "both agents to have said what they are",
                PATIENCE,
                async || {
                    for node in [gone, stays] {
                        let object = agents.get(node).await?;
                        ensure!(object.status.is_some(), "{node} has no status");
                        let managers = object.metadata.managed_fields;
                        ensure!(managers.is_none(), "{node} has {managers:?}");
                    }
                    Ok(())
                },
            )
            .await?;
            // The machine ends first, because a remaining kubelet would register again.
            t.nodes.vanish(gone).await?;
            nodes.delete(gone, &DeleteParams::default()).await?;
            eventually(
                "the agent of the deleted node to be collected",
                PATIENCE,
                async || {
                    ensure!(agents.get_opt(gone).await?.is_none(), "still there");
                    Ok(())
                },
            )
            .await?;
            ensure!(
                agents.get_opt(stays).await?.is_some(),
                "the agent of another node went, too"
            );
            Ok(())
        },
    )
    .await
}

const NODE: &str = "memory";
const QUEUED: usize = 500;
const DOMAINS: usize = 500;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_500_large_orders_stays_below_its_memory_limit() -> Result<()> {
    let mut cluster = fresh("agent-memory", patient()).await?;
    if !cluster.is_ours("a restart of the API server") {
        return Ok(());
    }
    let client = cluster.client().await?;
    let node: Node = serde_json::from_value(json!({"metadata": {"name": NODE}}))?;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node).await?;
    let team: Namespace = serde_json::from_value(json!({"metadata": {"name": "team"}}))?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &team).await?;
    let manager = cluster
        .client_as("sa:lockstep-system:lockstep-manager")
        .await?;
    queue_workloads(&manager).await?;
    let limit = memory_limit(&client).await?;

    let (agent, health) = start_agent(&cluster).await?;
    let works = async |what: &str| {
        eventually(what, PATIENCE, async || {
            // Its runtime is missing, so the agent is not ready.
            let refused = http::get(&health, "/readyz").await.unwrap_err();
            let text = format!("{refused:#}");
            let has_orders = text.contains("container runtime") && !text.contains("restart orders");
            ensure!(has_orders, "{text}");
            Ok(())
        })
        .await
    };
    works("the list of orders").await?;
    let listed = peak(&agent)?;

    // A new API server does not have the changes since the version of the watch. A bookmark may have
    // raised that version to the last one, so there is a later change.
    let later: Namespace = serde_json::from_value(json!({"metadata": {"name": "later"}}))?;
    namespaces.create(&PostParams::default(), &later).await?;
    cluster.restart_api_server("", &[]).await?;
    eventually("the end of the watch", PATIENCE, async || {
        let log = std::fs::read_to_string(agent.log())?;
        ensure!(log.contains("too old resource version"), "{log}");
        Ok(())
    })
    .await?;
    works("another list of orders").await?;
    let relisted = peak(&agent)?;
    println!("agent with {QUEUED} orders: {listed} bytes, after another list {relisted} bytes");
    ensure!(relisted < limit, "{relisted} bytes of {limit}");
    Ok(())
}

/// Orders of queued workloads with many restart domains, as a manager writes them.
async fn queue_workloads(manager: &Client) -> Result<()> {
    let domain = |i| DomainOrder {
        key: format!("workers-{i}"),
        attempt: 1,
        members: vec![format!("workers/{i}/0-7")],
        world: 8,
        deadline_seconds: Some(1_200),
        ..DomainOrder::default()
    };
    let domains: Vec<DomainOrder> = (0..DOMAINS).map(domain).collect();
    let orders: Api<RestartOrder> = Api::namespaced(manager.clone(), "team");
    let post = PostParams::default();
    let creations = (0..QUEUED).map(|i| {
        let spec = RestartOrderSpec {
            workload_uid: format!("00000000-0000-0000-0000-{i:012}"),
            domains: domains.clone(),
        };
        let order = RestartOrder::new(&format!("queued-{i}"), spec);
        let (orders, post) = (orders.clone(), post.clone());
        async move { orders.create(&post, &order).await.map(drop) }
    });
    let created = stream::iter(creations).buffer_unordered(4);
    Ok(created.try_collect::<()>().await?)
}

async fn memory_limit(client: &Client) -> Result<u64> {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), "lockstep-agent");
    let set = sets.get("lockstep-agent").await?;
    let template = set.spec.template.spec.context("a template")?;
    let container = template
        .containers
        .into_iter()
        .next()
        .context("a container")?;
    let limits = container
        .resources
        .and_then(|r| r.limits)
        .context("limits")?;
    let text = &limits["memory"].0;
    let mebibytes = text.strip_suffix("Mi").context("a limit in Mi")?;
    Ok(mebibytes.parse::<u64>()? << 20)
}

/// Starts the agent as its DaemonSet does, on a node without container runtime.
async fn start_agent(cluster: &Cluster) -> Result<(Process, String)> {
    let mut resolved = cluster.agent().await?;
    let identity = format!("sa:lockstep-agent:{}:{NODE}", resolved.service_account);
    let kubeconfig = cluster.kubeconfig_for(&identity).await?;
    let kubeconfig = kubeconfig.display().to_string();
    resolved.env.insert("KUBECONFIG".into(), kubeconfig);
    resolved.env.insert("NODE_NAME".into(), NODE.into());
    let health = format!("127.0.0.1:{}", free_port()?);
    let ports = [
        format!("--health-address={health}"),
        format!("--metrics-address=127.0.0.1:{}", free_port()?),
    ];
    let launch = Launch {
        name: "agent".into(),
        program: workspace_binary("lockstep-agent")?,
        args: resolved.args.into_iter().chain(ports).collect(),
        env: Some(resolved.env),
    };
    Ok((Process::start(&launch, cluster.folder())?, health))
}

/// The largest resident set of the process in bytes.
fn peak(process: &Process) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
    let mut lines = status.lines();
    let peak = lines.find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = peak.and_then(|p| p.trim().strip_suffix(" kB"));
    let kibibytes: u64 = kibibytes.context("VmHWM in kB")?.parse()?;
    Ok(kibibytes << 10)
}

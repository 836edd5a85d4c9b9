//! `lockstep-dashboard-cluster NODES/GANGS COMMAND...`: runs a command over `kubectl lockstep dashboard`,
//! which reads a busy cluster with the rights of its role: a real control plane with hollow nodes, each
//! with an agent, and gangs that run, wait, have failed, and are being preempted.
//!
//! The command has these variables:
//!
//! | variable | meaning |
//! |---|---|
//! | `DASHBOARD` | address of the page, with its token |
//! | `DASHBOARD_PID` | process of the program that serves it |
//! | `DASHBOARD_SIZE` | `NODES/GANGS` |
//! | `KUBECTL`, `KUBECONFIG` | kubectl, and the kubeconfig of the administrator |

mod filling;
mod gangs;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use lockstep_cluster::nodes::{Nodes, Shape};
use lockstep_cluster::process::{Launch, Process, workspace_binary};
use lockstep_cluster::{Cluster, Options};
use serde_json::json;
use tokio::time::interval;

use filling::Filling;
use gangs::{POOL, WAITING};

/// Limit of each step.
const PATIENCE: Duration = Duration::from_mins(20);
/// Time between two lines about progress.
const REPORT: Duration = Duration::from_secs(10);
/// No node fails here. With shorter Leases, renewals of thousands of nodes keep the machine so busy that
/// some come late, and gangs restart.
const LEASE_SECONDS: u32 = 3_600;
/// User with role `lockstep-dashboard`.
const READER: &str = "reader";

/// Numbers of nodes and gangs.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    gangs: usize,
}

impl Size {
    fn parse(text: &str) -> Result<Self> {
        let (nodes, gangs) = text
            .split_once('/')
            .context("the size is not NODES/GANGS")?;
        let size = Self {
            nodes: nodes.parse().context("number of nodes")?,
            gangs: gangs.parse().context("number of gangs")?,
        };
        ensure!(size.nodes >= 100, "there must be at least 100 nodes");
        ensure!(size.gangs >= 2 * WAITING, "there must be at least 60 gangs");
        Ok(size)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let size = args.next().context("arguments: NODES/GANGS COMMAND...")?;
    let command: Vec<String> = args.collect();
    ensure!(!command.is_empty(), "arguments: NODES/GANGS COMMAND...");
    let wanted = Size::parse(&size)?;
    let options = Options {
        // A gang may fail again soon after a restart.
        config: json!({"workloads": {"healthyReset": "100ms", "incidentBackoffMin": "1ms"}}),
        node_monitor_grace: Duration::from_secs(LEASE_SECONDS.into()),
        ..Options::named("dashboard")
    };
    println!("{size}: control plane");
    let cluster = Cluster::start(&options).await?;
    ensure!(
        cluster.has_nodes("the dashboard"),
        "unset LOCKSTEP_KUBECONFIG; KUBEBUILDER_ASSETS needs a scheduler and a controller manager"
    );
    let _manager = cluster.start_manager("dashboard").await?;
    let nodes = start_nodes(&cluster, wanted).await?;
    let filling = Filling {
        cluster: &cluster,
        client: cluster.client().await?,
        nodes: &nodes,
        size: wanted,
    };
    filling.run().await?;
    let mut dashboard = serve(&cluster).await?;
    let line = dashboard.ready_line("Serving ", PATIENCE).await?;
    let address = line.split_whitespace().next().context("an address")?;
    println!("{size}: {}", command.join(" "));
    let status = tokio::process::Command::new(&command[0])
        .args(&command[1..])
        .env("DASHBOARD", address)
        .env("DASHBOARD_PID", dashboard.pid().to_string())
        .env("DASHBOARD_SIZE", &size)
        .env("KUBECTL", cluster.kubectl_program())
        .env("KUBECONFIG", cluster.kubeconfig())
        .kill_on_drop(true)
        .status()
        .await
        .with_context(|| command[0].clone())?;
    ensure!(status.success(), "{} ended with {status}", command[0]);
    ensure!(dashboard.ended()?.is_none(), "the dashboard has ended");
    Ok(())
}

/// Starts the nodes, and reports how many exist.
async fn start_nodes(cluster: &Cluster, size: Size) -> Result<Nodes> {
    let shape = Shape {
        nodes: i32::try_from(size.nodes)?,
        racks: i32::try_from(size.nodes.div_ceil(16))?,
        supervise: true,
        args: vec![
            format!("--zones={}", size.nodes.div_ceil(128)),
            format!("--lease-seconds={LEASE_SECONDS}"),
            format!("--renew-seconds={}", LEASE_SECONDS / 4),
            "--log-level=warn".into(),
        ],
        ..Shape::default()
    };
    let all = Api::<Node>::all(cluster.client().await?);
    let counted = async {
        let mut turns = interval(REPORT);
        turns.tick().await;
        loop {
            turns.tick().await;
            let first = all.list_metadata(&ListParams::default().limit(1)).await?;
            let more = first.metadata.remaining_item_count.unwrap_or_default();
            let there = first.items.len() + usize::try_from(more)?;
            println!("{there} of {} nodes", size.nodes);
        }
    };
    tokio::select! {
        nodes = Nodes::start(cluster, POOL, &shape) => nodes,
        failed = counted => failed,
    }
}

/// Starts `kubectl lockstep dashboard` with the rights of its role.
async fn serve(cluster: &Cluster) -> Result<Process> {
    let user = format!("--user={READER}");
    let role = "--clusterrole=lockstep-dashboard";
    let bind = ["create", "clusterrolebinding", READER, role, &user];
    cluster.kubectl(&bind).await?;
    let kubeconfig = cluster.kubeconfig_for(&format!("user:{READER}")).await?;
    let launch = Launch {
        name: "dashboard".to_owned(),
        program: workspace_binary("kubectl-lockstep")?,
        args: vec![
            "dashboard".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
        ],
        env: None,
    };
    Process::start(&launch, cluster.folder())
}

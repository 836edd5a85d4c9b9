//! `make bench-scale NODES=200`: cost of a large gang on hollow nodes, each with the real agent and a
//! separate watch.
//!
//! Every arm waits until its effect is visible in the API, or the program fails. Times depend on the
//! machine. Comparable between machines are the ratios between arms of a run, and the numbers of calls.
//! An arm during which nodes were NotReady is marked with their number, because it measures them too.
//!
//! | variable | meaning |
//! |---|---|
//! | `NODES` | number of nodes, 200 by default; the gang has a member on each |
//! | `ROUNDS` | rounds of the supervised restart and of the recreation, 3 by default; at most 3 rounds of the other arms |
//! | `LATENCY` | `measured` (default) or `zero`: delays on the nodes |
//! | `PODS` | number of other pods in the cluster, 0 by default, on nodes without kubelet |
//! | `PARTS` | parts separated by commas, all by default: `restarts` (with supervisors and with new pods), `slow` (the same arms also with a slow API server; then all arms use a proxy before the API server), `restart-all`, `preemption`, `failover`, `restart-rules`, `plain` |
//!
//! Two parts run only if they are named: `backends`, preemption with each scheduling backend on a control plane
//! with native groups, and `heartbeats`, the manager's CPU while nodes refresh 20 conditions every five minutes.

#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures the time of the machine"
)]

mod arms;
mod backends;
mod budgets;
mod calls;
mod figures;
mod filler;
mod heartbeats;
mod machine;
mod record;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::proxy::Proxy;
use lockstep_cluster::{Cluster, Options, scenario};
use serde_json::json;

use arms::Bench;
use record::Record;

/// Selected options.
struct Wanted {
    nodes: i32,
    rounds: usize,
    latency: String,
    pods: usize,
    parts: BTreeSet<String>,
}

/// Default of `--node-monitor-grace-period`. A machine that simulates all nodes renews their Leases
/// late.
const DEFAULT_GRACE: Duration = Duration::from_secs(50);

/// Parts that can be omitted.
const PARTS: &str = "restarts,slow,restart-all,preemption,failover,restart-rules,plain";

/// The part that needs native groups.
const BACKENDS: &str = "backends";

/// The part that refreshes conditions of nodes.
const HEARTBEATS: &str = "heartbeats";

fn wanted() -> Result<Wanted> {
    let var = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.into());
    let parts = var("PARTS", PARTS);
    let wanted = Wanted {
        parts: parts
            .split(',')
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect(),
        nodes: var("NODES", "200").parse().context("NODES")?,
        rounds: var("ROUNDS", "3").parse().context("ROUNDS")?,
        latency: var("LATENCY", "measured"),
        pods: var("PODS", "0").parse().context("PODS")?,
    };
    ensure!(wanted.nodes >= 2, "NODES must be at least 2");
    let known: BTreeSet<&str> = PARTS.split(',').chain([BACKENDS, HEARTBEATS]).collect();
    for part in &wanted.parts {
        ensure!(
            known.contains(part.as_str()),
            "PARTS has {part:?}, and there are {PARTS},{BACKENDS},{HEARTBEATS}"
        );
    }
    let gangs = backends::GANGS;
    ensure!(
        wanted.nodes >= gangs || !wanted.parts.contains(BACKENDS),
        "NODES is {}, and part {BACKENDS} needs at least {gangs}",
        wanted.nodes
    );
    Ok(wanted)
}

#[tokio::main]
async fn main() -> Result<()> {
    let wanted = wanted()?;
    // In repeated restarts, the gang counts as healthy between two of them.
    let config = json!({"workloads": {"healthyReset": "100ms", "incidentBackoffMin": "1ms"}});
    let native = wanted.parts.contains(BACKENDS);
    let options = Options {
        config,
        gates: if native {
            backends::GATE.into()
        } else {
            String::new()
        },
        api_server: native
            .then(|| backends::SERVED.into())
            .into_iter()
            .collect(),
        node_monitor_grace: DEFAULT_GRACE,
        ..Options::named("scale")
    };
    let cluster = Cluster::start(&options).await?;
    ensure!(
        cluster.has_nodes("bench-scale"),
        "unset LOCKSTEP_KUBECONFIG; KUBEBUILDER_ASSETS needs a scheduler and a controller manager"
    );
    for (class, value) in [("low", "100"), ("high", "1000")] {
        cluster
            .kubectl(&["create", "priorityclass", class, "--value", value])
            .await?;
    }
    println!(
        "{} nodes, latencies {}, load {}",
        wanted.nodes,
        wanted.latency,
        machine::load()?
    );
    filler::fill(&cluster, wanted.pods).await?;
    let proxy = if wanted.parts.contains("slow") {
        Some(Proxy::start(&cluster).await?)
    } else {
        None
    };
    let manager = match &proxy {
        Some(proxy) => cluster.start_manager_through(proxy, "first").await?,
        None => cluster.start_manager("first").await?,
    };
    let mut record = Record::new(&cluster, manager)?;
    let proxy = proxy.as_ref();
    let nodes = shape(&wanted, &[], &cluster, proxy)?;
    scenario(&cluster, "scale", &nodes, async |t| {
        Bench::new(t, &wanted, &mut record, proxy).run().await
    })
    .await?;
    for (tier, less) in LESSER_TIERS {
        if !wanted.parts.contains(tier) {
            continue;
        }
        let nodes = shape(&wanted, &[less], &cluster, proxy)?;
        scenario(&cluster, tier, &nodes, async |t| {
            Bench::new(t, &wanted, &mut record, proxy).tier(tier).await
        })
        .await?;
    }
    record.print(wanted.nodes)
}

/// Tiers that restart containers on nodes with fewer features, and the arguments for such nodes.
const LESSER_TIERS: [(&str, &str); 2] = [
    ("restart-rules", "--no-restart-all=*"),
    ("plain", "--kubelet-version=v1.34.2"),
];

/// The nodes, with additional arguments.
fn shape(
    wanted: &Wanted,
    more: &[&str],
    cluster: &Cluster,
    proxy: Option<&Proxy>,
) -> Result<Shape> {
    let latency = format!("--latency-profile={}", wanted.latency);
    let args = [&latency, "--own-watches", "--log-level=warn"];
    let through = proxy.map(|proxy| proxy.kubeconfig(cluster.kubeconfig()));
    Ok(Shape {
        nodes: wanted.nodes,
        racks: (wanted.nodes / 16).max(1),
        supervise: true,
        args: args
            .iter()
            .chain(more)
            .map(|arg| (*arg).to_owned())
            .collect(),
        kubeconfig: through.transpose()?,
        ..Shape::default()
    })
}

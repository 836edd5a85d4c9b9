//! `make bench-scale NODES=200`: what a large gang costs, on hollow nodes each with the real agent
//! and a watch of its own.
//!
//! Every arm ends with what it claims showing in the API, or the program fails. Times are those of
//! this machine; the ratios between arms of one run, and the calls, are what compares.
//!
//! | variable | meaning |
//! |---|---|
//! | `NODES` | how many, 200 by default; the gang has a member on each |
//! | `ROUNDS` | rounds of the supervised restart and of the recreation, 3 by default; of everything else that is repeated at most 3 |
//! | `LATENCY` | `measured` (default) or `zero`, what the nodes themselves take |
//! | `PODS` | pods in the cluster before it begins, 0 by default, on nodes that nobody plays |
//! | `PARTS` | what to play, by comma; all by default: `restarts` (with supervisors and with new pods), `slow` (the same arms on a slow API server, too; then a proxy is between the API server and all others, in every arm), `restart-all`, `preemption`, `failover`, `restart-rules`, `plain` |

#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures the time of the machine"
)]

mod arms;
mod budgets;
mod calls;
mod figures;
mod filler;
mod machine;
mod record;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::proxy::Proxy;
use lockstep_cluster::{Cluster, Options, scenario};
use serde_json::json;

use arms::Bench;
use record::Record;

/// What is asked for.
struct Wanted {
    nodes: i32,
    rounds: usize,
    latency: String,
    pods: usize,
    parts: BTreeSet<String>,
}

/// What may be left out.
const PARTS: &str = "restarts,slow,restart-all,preemption,failover,restart-rules,plain";

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
    let known: BTreeSet<&str> = PARTS.split(',').collect();
    for part in &wanted.parts {
        ensure!(
            known.contains(part.as_str()),
            "PARTS has {part:?}, and there are {PARTS}"
        );
    }
    Ok(wanted)
}

#[tokio::main]
async fn main() -> Result<()> {
    let wanted = wanted()?;
    // Restarts one after the other are restarts of a gang that has been well in between.
    let config = json!({"workloads": {"healthyReset": "100ms", "incidentBackoffMin": "1ms"}});
    let options = Options {
        config,
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

/// How containers restart in place where nodes can less, and what makes the nodes so.
const LESSER_TIERS: [(&str, &str); 2] = [
    ("restart-rules", "--no-restart-all=*"),
    ("plain", "--kubelet-version=v1.34.2"),
];

/// The nodes, with further arguments.
fn shape(
    wanted: &Wanted,
    more: &[&str],
    cluster: &Cluster,
    proxy: Option<&Proxy>,
) -> Result<Shape> {
    let latency = format!("--latency-profile={}", wanted.latency);
    // A machine that plays all nodes is late with their leases.
    let args = [
        &latency,
        "--own-watches",
        "--lease-seconds=120",
        "--log-level=warn",
    ];
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

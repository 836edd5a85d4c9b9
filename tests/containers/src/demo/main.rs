//! Restarts on real containers, to look at: `make demo-containers`. Eight members train on the nodes of
//! this machine; one after the other is killed, told to exit, given less memory than it takes, and
//! stopped, and then a node is lost. Each time all go on from the last checkpoint.
//!
//! Ends with 0 if all of it was seen.

mod act;
mod timeline;

use anyhow::{Context, Result, ensure};
use lockstep_cluster::scenario::{Scenario, node, scenario};
use lockstep_cluster::{Cluster, Options, eventually};
use lockstep_containers::fleet::{LIMIT, signal};
use lockstep_containers::{Fleet, Job};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::act::{Act, Show};
use crate::timeline::table;

/// One more than the members fill.
const NODES: i32 = 5;
const MEMBERS: usize = 8;
/// A node is silent this long after its last sign of life. On real ones that is 40 s.
const LEASE: &str = "--lease-seconds=8";
const RENEWAL: &str = "--renew-seconds=1";

#[tokio::main]
async fn main() -> Result<()> {
    println!(
        "starting an API server, the manager, and {NODES} nodes with containerd and an agent each"
    );
    let options = Options {
        config: json!({"workloads": {"healthyReset": "1s"}, "leaderElection": null}),
        ..Options::named("demo")
    };
    let cluster = Cluster::start(&options).await?;
    let _manager = cluster.start_manager("a").await?;
    let mut fleet = Fleet::start(&cluster, "demo", NODES).await?;
    let shape = fleet.shape(&[LEASE, RENEWAL]);
    let mut seen = Vec::new();
    let outcome = scenario(&cluster, "demo", &shape, async |t| {
        fleet.start_agents(t).await?;
        perform(t, &mut fleet, &mut seen).await
    })
    .await;
    println!("\n{}", table(&seen));
    outcome
}

/// Longer than a lost node takes to be noticed, and shorter than members wait for each other.
fn policy() -> Value {
    json!({"failurePolicy": {
        "nodeLostSeconds": 1,
        "progress": {"timeoutSeconds": 16, "startupSeconds": 60},
    }})
}

async fn perform(t: &Scenario<'_>, fleet: &mut Fleet, seen: &mut Vec<Act>) -> Result<()> {
    let job = Job::new(&t.cluster.folder().join(&t.name), "gpt", MEMBERS)?;
    let limited = json!({"resources": {"limits": {"nvidia.com/gpu": 4, "memory": "64Mi"}}});
    t.create(job.manifest(policy(), limited)?).await?;
    eventually("all members to step", LIMIT, async || job.since(0)).await?;
    let mut show = Show { t, job: &job, seen };
    show.members().await?;
    show.in_place("kill -9 of a member", async |pods| {
        signal(t, &pods[2], Signal::KILL).await
    })
    .await?;
    show.in_place("a member exits with 42", async |_| {
        job.command(5, "exit 42")
    })
    .await?;
    show.in_place("out of memory", async |_| job.command(7, "leak"))
        .await?;
    show.in_place("a member is stopped", async |pods| {
        signal(t, &pods[3], Signal::STOP).await
    })
    .await?;

    let pods = t.running("gpt").await?;
    // The others would look for a rank 0 that moves at the address that they were started with.
    let nodes = pods.iter().map(node);
    let lost = nodes.rev().find(|name| *name != node(&pods[0]));
    let lost = lost.context("all members are on one node")?;
    show.elsewhere("a node is lost", &lost, async |pods| {
        fleet.lose(t, &lost, pods).await
    })
    .await?;
    ensure!(job.mixed() == 0, "members of two attempts have met");
    println!("\nno two attempts have ever met");
    Ok(())
}

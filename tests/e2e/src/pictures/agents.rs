//! Agents on nodes with a containerd each for some minutes, for their dashboard: a gang under
//! supervisors and a gang without fail repeatedly, and an agent is replaced.

use std::path::Path;

use anyhow::{Context, Result};
use lockstep_cluster::prometheus::{self, Hold, Prometheus};
use lockstep_cluster::scenario::{Scenario, scenario};
use lockstep_cluster::{Cluster, Options, eventually};
use lockstep_containers::fleet::{LIMIT, kill_container};
use lockstep_containers::job::now;
use lockstep_containers::{Fleet, Job};
use serde_json::{Value, json};

use crate::draw::Artist;
use crate::pause;

/// Each of the two gangs fills half of the nodes.
const NODES: i32 = 4;
const MEMBERS: usize = 4;
/// The dashboard.
const AGENTS: &str = "agents";
const ROUNDS: usize = 4;

/// Runs the agents and draws their dashboard with the artist of the other dashboards. Needs root
/// and containerd.
pub async fn draw(artist: Artist, out: &Path) -> Result<()> {
    println!("agents: gangs restart on real containers");
    let options = Options {
        config: json!({"workloads": {"healthyReset": "1s"}, "leaderElection": null}),
        ..Options::named(AGENTS)
    };
    let cluster = Cluster::start(&options).await?;
    let _manager = cluster.start_manager("a").await?;
    let mut fleet = Fleet::start(&cluster, AGENTS, NODES).await?;
    let shape = fleet.shape(&[]);
    scenario(&cluster, AGENTS, &shape, async |t| {
        fleet.start_agents(t).await?;
        let nodes = fleet.nodes().iter();
        let targets = nodes.map(|n| n.agent_metrics_address());
        let targets = targets.collect::<Result<Vec<_>>>()?;
        let program = prometheus::built().await?;
        let prometheus = Prometheus::start(&program, &cluster, &targets, Hold::Seconds).await?;
        let artist = Artist {
            folder: cluster.folder().join("pages"),
            prometheus: prometheus.address.clone(),
            since: now()? / 1_000_000,
            ..artist
        };
        play(t, &mut fleet).await?;
        artist.draw(AGENTS, out).await
    })
    .await
}

async fn play(t: &Scenario<'_>, fleet: &mut Fleet) -> Result<()> {
    let folder = t.cluster.folder().join(&t.name);
    let inside = Job::new(&folder, "gpt", MEMBERS)?;
    let whole = Job::new(&folder, "bert", MEMBERS)?;
    let patient = json!({"limits": {"maxRestarts": 100}});
    let without = json!({
        "limits": {"maxRestarts": 100},
        "inPlace": {"supervisor": "Never", "withoutSupervisor": "Allow"},
    });
    for (job, policy) in [(&inside, patient), (&whole, without)] {
        let policy = json!({"failurePolicy": policy});
        t.create(job.manifest(policy, accelerators())?).await?;
        eventually("all members to step", LIMIT, async || job.since(0)).await?;
    }
    for round in 0..ROUNDS {
        pause(12).await;
        let failed = now()?;
        inside.command(round % MEMBERS, "exit 42")?;
        eventually("all members to step", LIMIT, async || inside.since(failed)).await?;
        pause(8).await;
        let failed = now()?;
        let pods = t.running("bert").await?;
        kill_container(t, pods.get(round % MEMBERS).context("a member")?).await?;
        eventually("all members to step", LIMIT, async || whole.since(failed)).await?;
    }
    let nodes = fleet.nodes();
    nodes.first_mut().context("a node")?.replace_agent()?;
    pause(20).await;
    Ok(())
}

fn accelerators() -> Value {
    json!({"resources": {"limits": {"nvidia.com/gpu": 4}}})
}

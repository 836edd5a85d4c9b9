//! `make demo`: a live demonstration of Lockstep on a real API server: first with real processes,
//! then with many hollow nodes.
//!
//! Every step waits until what it claims shows in the API; the program ends with 0 only if all of
//! them did.

mod large;
mod observed;
mod processes;
mod training;

use anyhow::{Context, Result, ensure};
use lockstep_cluster::manifests::POOL;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::process::workspace_binary;
use lockstep_cluster::stage::Stage;
use lockstep_cluster::{Cluster, LOOK_AROUND, Options, Scenario, prometheus, scenario};
use serde_json::json;

use crate::observed::Observed;
use crate::training::Trainings;

/// The value 1 keeps the cluster until Ctrl-C.
const KEEP: &str = "DEMO_KEEP";
const MACHINES: i32 = 4;
/// Pool of the nodes that run real processes.
const PROCESSES: &str = "processes";
const NODES: i32 = 64;

#[tokio::main]
async fn main() -> Result<()> {
    let mut stage = Stage::begin();
    stage.say("building and starting a control plane, and installing Lockstep with `kubectl apply -k config/overlays/full`");
    // For users who inspect the cluster afterwards.
    let program = if keeps() {
        prometheus::found().await?
    } else {
        None
    };
    let mut options = Options::named("demo");
    if program.is_some() {
        options.config = json!({"metrics": {"workloads": {"enabled": true}}});
    }
    let cluster = Cluster::start(&options).await?;
    ensure!(
        cluster.has_nodes("the demo"),
        "unset KUBEBUILDER_ASSETS and LOCKSTEP_KUBECONFIG"
    );
    for (class, value) in [("research", "100"), ("production", "1000")] {
        cluster
            .kubectl(&["create", "priorityclass", class, "--value", value])
            .await?;
    }
    let managers = [cluster.start_manager("demo").await?];
    let observed = match program {
        Some(program) => Some(Observed::start(&program, &cluster, &managers).await?),
        None => None,
    };
    first_act(&mut stage, &cluster, observed.as_ref()).await
}

/// True if the cluster is kept.
fn keeps() -> bool {
    std::env::var(KEEP).is_ok_and(|v| v == "1")
}

/// The second act runs while the objects of the first act still exist, so that all can be inspected
/// at the end.
async fn first_act(
    stage: &mut Stage,
    cluster: &Cluster,
    observed: Option<&Observed>,
) -> Result<()> {
    stage.act(&format!(
        "act 1: real processes on {MACHINES} nodes of 8 accelerators"
    ));
    let trainings = Trainings::in_folder(cluster.folder())?;
    let shape = Shape {
        nodes: MACHINES,
        args: trainings.node_args(),
        ..Shape::default()
    };
    scenario(cluster, PROCESSES, &shape, async |t| {
        processes::perform(stage, t, &trainings).await;
        second_act(stage, cluster, observed).await
    })
    .await
}

async fn second_act(
    stage: &mut Stage,
    cluster: &Cluster,
    observed: Option<&Observed>,
) -> Result<()> {
    stage.act(&format!(
        "act 2: {NODES} hollow nodes of 8 accelerators in 8 racks"
    ));
    // A node counts as silent 8 s after its last sign of life, to avoid a wait of 40 s. On a busy
    // machine, slow nodes are not lost.
    let args = vec!["--lease-seconds=8".into(), "--renew-seconds=1".into()];
    let shape = Shape {
        nodes: NODES,
        racks: 8,
        supervise: true,
        args,
        ..Shape::default()
    };
    scenario(cluster, "demo", &shape, async |t| {
        large::perform(stage, t).await;
        finish(stage, t, observed).await
    })
    .await
}

async fn finish(stage: &Stage, t: &Scenario<'_>, observed: Option<&Observed>) -> Result<()> {
    let all_seen = stage.summary();
    if keeps() {
        // Containers on these nodes are processes of this machine, which has no images.
        let selector = format!("{POOL}={PROCESSES}");
        t.cluster.kubectl(&["cordon", "-l", &selector]).await?;
        look_around(t)?;
        match observed {
            Some(observed) => observed.tell(),
            None => println!("With prometheus (2.40 or newer) on PATH there are dashboards, too."),
        }
        println!("Ctrl-C here ends it.");
        tokio::signal::ctrl_c().await?;
    } else {
        println!("\n{KEEP}=1 make demo leaves the cluster running, to look around.");
    }
    ensure!(all_seen, "not every step was observed");
    Ok(())
}

/// Commands to type next, in another terminal.
fn look_around(t: &Scenario<'_>) -> Result<()> {
    let lockstep = workspace_binary("kubectl-lockstep")?;
    let folder = lockstep.parent().context("a folder")?.display();
    println!("\nIn another terminal:");
    println!("  export KUBECONFIG={}", t.cluster.kubeconfig().display());
    println!("  export PATH=$PATH:{folder}");
    for command in LOOK_AROUND {
        println!("  kubectl {command}");
    }
    Ok(())
}

//! `make demo`: what Lockstep does, live, on a real API server and hollow nodes.
//!
//! Every step waits until what it claims shows in the API; the program ends with 0 only if all of them did.

mod stage;
mod steps;

use anyhow::{Result, ensure};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::{Cluster, Options, reaper, scenario};
use serde_json::json;

use crate::stage::Stage;

/// Set to 1, the cluster stays until Ctrl-C.
const KEEP: &str = "DEMO_KEEP";
const NODES: i32 = 64;

#[tokio::main]
async fn main() -> Result<()> {
    let mut stage = Stage::new();
    stage.say("building and starting a control plane, and installing Lockstep with `kubectl apply -k config/default`");
    let cluster = Cluster::start(&Options { name: "demo".into(), config: json!({}) }).await?;
    for (class, value) in [("research", "100"), ("production", "1000")] {
        cluster.kubectl(&["create", "priorityclass", class, "--value", value]).await?;
    }
    let _manager = cluster.start_manager("demo").await?;
    stage.say(&format!("starting {NODES} hollow nodes of 8 accelerators in 8 racks"));
    // A node is silent 4 s after its last sign of life: the demonstration need not wait 40 s for that.
    let args = vec!["--lease-seconds=4".into(), "--renew-seconds=1".into()];
    let shape = Shape { nodes: NODES, racks: 8, args, ..Shape::default() };
    scenario(&cluster, "demo", &shape, async |t| {
        steps::perform(&mut stage, t).await;
        let all_seen = stage.summary();
        if std::env::var(KEEP).is_ok_and(|v| v == "1") {
            reaper::keep_folder()?;
            println!("\nlook around: export KUBECONFIG={}", cluster.kubeconfig().display());
            println!("Ctrl-C ends it.");
            tokio::signal::ctrl_c().await?;
        }
        ensure!(all_seen, "not every step was observed");
        Ok(())
    })
    .await
}

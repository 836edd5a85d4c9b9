//! `make pictures`: runs a small cluster for some minutes with a real Prometheus, and draws the
//! dashboards with a browser, that of agents after a few minutes on real containers.
//!
//! `lockstep-pictures CHROMIUM UPLOT OUT`: the browser, the folder of uPlot, and the folder for the
//! pictures.

mod agents;
mod draw;
mod story;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_cluster::autoscaler::Autoscaler;
use lockstep_cluster::nodes::{Nodes, Shape};
use lockstep_cluster::prometheus::{self, Hold, Prometheus};
use lockstep_e2e::{demanding, patient, started};
use serde_json::json;

use crate::draw::Artist;
use crate::story::Story;

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let mut next = || {
        args.next()
            .context("usage: lockstep-pictures CHROMIUM UPLOT OUT")
    };
    let (chromium, uplot, out) = (next()?, next()?, next()?);
    std::fs::create_dir_all(&out)?;

    let mut config = patient();
    config["metrics"] = json!({"workloads": {"enabled": true}});
    let mode = AutoscalerMode::ProvisioningRequest;
    let cluster = started(&demanding("pictures", mode, config)).await?;
    ensure!(
        cluster.has_nodes("a picture"),
        "a control plane of our own is needed"
    );
    Autoscaler::serve(&cluster, &["v1"]).await?;
    let managers = [
        cluster.start_manager("a").await?,
        cluster.start_manager("b").await?,
    ];
    let targets: Vec<&str> = managers.iter().map(|m| m.metrics.as_str()).collect();
    let prometheus = Prometheus::start(
        &prometheus::built().await?,
        &cluster,
        &targets,
        Hold::Seconds,
    )
    .await?;
    let shape = Shape {
        nodes: story::NODES,
        racks: 4,
        supervise: true,
        ..Shape::default()
    };
    let nodes = Nodes::start(&cluster, "node", &shape).await?;
    let story = Story::new(&cluster, &nodes).await?;
    story.play().await?;

    let artist = Artist {
        chromium,
        uplot,
        folder: cluster.folder().join("pages"),
        prometheus: prometheus.address.clone(),
        since: prometheus.begin().await?,
    };
    artist.draw_all(&out).await?;
    agents::draw(artist, &out).await
}

/// Keeps the state of the cluster for a while.
async fn pause(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

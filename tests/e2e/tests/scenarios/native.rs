//! What the cluster serves of upstream's scheduling shows; Lockstep places gangs either way.

use anyhow::{Result, ensure};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::{Cluster, Options, http, scenario};
use serde_json::json;

/// Serves `scheduling.k8s.io` pod groups in every version that the API server has, alpha included.
const NATIVE_SCHEDULING: [&str; 2] = [
    "--feature-gates=GenericWorkload=true",
    "--runtime-config=api/all=true",
];
/// Name of the metric, with the versions as its label.
const METRIC: &str = "lockstep_native_scheduling";

/// Runs a gang on a cluster of its own; the lines of the metric.
async fn shown(name: &str, api_server: &[&str]) -> Result<Option<Vec<String>>> {
    let cluster = Cluster::start(&Options {
        api_server: api_server.iter().map(|&arg| arg.to_owned()).collect(),
        ..Options::named(name)
    })
    .await?;
    if !cluster.has_nodes(name) {
        return Ok(None);
    }
    let manager = cluster.start_manager("a").await?;
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    scenario(&cluster, name, &shape, async |t| {
        t.create(gang("g", 2, 8, json!({}))).await?;
        t.running("g").await.map(drop)
    })
    .await?;
    let metrics = http::get(&manager.metrics, "/metrics").await?;
    let lines = metrics.lines().filter(|l| l.starts_with(METRIC));
    Ok(Some(lines.map(str::to_owned).collect()))
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_groups_that_the_cluster_serves_show_with_their_versions() -> Result<()> {
    let Some(metric) = shown("native", &NATIVE_SCHEDULING).await? else {
        return Ok(());
    };
    let one =
        |line: &String| line.starts_with(&format!("{METRIC}{{version=\"v")) && line.ends_with(" 1");
    ensure!(!metric.is_empty() && metric.iter().all(one), "{metric:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_pod_groups_in_the_cluster_gangs_are_placed_all_the_same() -> Result<()> {
    let Some(metric) = shown("not-native", &[]).await? else {
        return Ok(());
    };
    ensure!(metric.is_empty(), "{metric:?}");
    Ok(())
}

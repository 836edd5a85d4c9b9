//! What the cluster serves of upstream's scheduling shows; Lockstep places gangs either way.

use anyhow::{Context, Result, ensure};
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::{Cluster, Options, http, scenario};
use serde_json::json;

/// Name of the metric, with the versions as its label.
const METRIC: &str = "lockstep_native_scheduling";

/// Runs a gang on a cluster of its own; checks the condition's reason, and returns its message and
/// the lines of the metric.
async fn shown(
    name: &str,
    native_scheduling: bool,
    reason: &str,
) -> Result<Option<(String, Vec<String>)>> {
    let cluster = Cluster::start(&Options {
        native_scheduling,
        ..Options::named(name)
    })
    .await?;
    if !cluster.has_nodes(name) {
        return Ok(None);
    }
    let manager = cluster.start_manager("a").await?;
    let mut message = String::new();
    scenario(
        &cluster,
        name,
        &Shape {
            nodes: 2,
            ..Shape::default()
        },
        async |t| {
            t.create(gang("g", 2, 8, json!({}))).await?;
            t.running("g").await?;
            message = t
                .condition_is("g", types::NATIVE_SCHEDULING, false, reason)
                .await?;
            Ok(())
        },
    )
    .await?;
    let metrics = http::get(&manager.metrics, "/metrics").await?;
    Ok(Some((
        message,
        metrics
            .lines()
            .filter(|l| l.starts_with(METRIC))
            .map(str::to_owned)
            .collect(),
    )))
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_groups_that_the_cluster_serves_show_with_their_versions_and_are_not_used() -> Result<()>
{
    let Some((message, metric)) = shown("native", true, reasons::NOT_USED).await? else {
        return Ok(());
    };
    let versions = message
        .split(['(', ')'])
        .nth(1)
        .context("versions in brackets")?;
    let expected: Vec<String> = versions
        .split(", ")
        .map(|v| format!("{METRIC}{{version=\"{v}\"}} 1"))
        .collect();
    ensure!(metric == expected, "{message}: {metric:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_pod_groups_says_so_and_gangs_are_placed_all_the_same() -> Result<()> {
    let Some((message, metric)) = shown("not-native", false, reasons::NOT_SERVED).await? else {
        return Ok(());
    };
    ensure!(
        message.contains("Lockstep places gangs") && metric.is_empty(),
        "{message}: {metric:?}"
    );
    Ok(())
}

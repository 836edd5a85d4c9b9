//! What the API server supports of native groups is discovered, also after a restart.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::{Cluster, Options, eventually, http, scenario};
use serde_json::{Value, json};

/// Feature gate of native groups.
const GATE: &str = "GenericWorkload=true";
const PATIENCE: Duration = Duration::from_secs(30);

fn served(version: &str) -> String {
    format!("--runtime-config=scheduling.k8s.io/{version}=true")
}

/// A separate cluster, whose manager tests the API server every second.
async fn cluster(options: Options) -> Result<Cluster> {
    Cluster::start(&Options {
        config: json!({"resyncPeriod": "1s"}),
        ..options
    })
    .await
}

/// Waits until the metrics show these versions and this state of the field of pods.
async fn shows(metrics: &str, versions: &[&str], field: &str) -> Result<()> {
    let what = format!("the metrics to show {versions:?} and {field}");
    eventually(&what, PATIENCE, async || {
        let text = http::get(metrics, "/metrics").await?;
        let lines: Vec<&str> = text
            .lines()
            .filter(|l| l.starts_with("lockstep_native_scheduling"))
            .collect();
        let mut expected: Vec<String> = versions
            .iter()
            .map(|v| format!("lockstep_native_scheduling{{version=\"{v}\"}} 1"))
            .collect();
        expected.push(format!(
            "lockstep_native_scheduling_pod_field{{state=\"{field}\"}} 1"
        ));
        let same = expected.iter().all(|e| lines.contains(&e.as_str()));
        ensure!(same && lines.len() == expected.len(), "{lines:?}");
        Ok(())
    })
    .await
}

/// The finding of `kubectl lockstep doctor` about native groups.
async fn doctor(cluster: &Cluster) -> Result<String> {
    let checks = cluster.lockstep(&["doctor", "-o", "json"]).await;
    // Without hollow nodes some checks fail, and so does the command.
    let text = checks.unwrap_or_else(|failed| failed.to_string());
    let start = text.find('{').context("JSON")?;
    let end = text.rfind('}').context("JSON")?;
    let diagnosis: Value = serde_json::from_str(&text[start..=end])?;
    let checks = diagnosis["checks"].as_array().context("checks")?;
    let native = checks.iter().find(|c| c["check"] == "native");
    let message = native.and_then(|c| c["message"].as_str());
    Ok(message.context("a message")?.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_api_server_with_other_gates_is_noticed() -> Result<()> {
    let mut cluster = cluster(Options::named("native")).await?;
    if !cluster.is_ours("native groups") {
        return Ok(());
    }
    let manager = cluster.start_manager("a").await?;
    shows(&manager.metrics, &[], "unknown").await?;
    ensure!(doctor(&cluster).await? == "scheduling.k8s.io serves no pod groups");
    cluster
        .restart_api_server(GATE, &[served("v1beta1")])
        .await?;
    shows(&manager.metrics, &["v1beta1"], "kept").await?;
    let message = doctor(&cluster).await?;
    ensure!(
        message.contains("(v1beta1) and pods keep spec.schedulingGroup"),
        "{message}"
    );
    // Without the gate, the version is served without pod groups.
    cluster.restart_api_server("", &[served("v1beta1")]).await?;
    shows(&manager.metrics, &[], "unknown").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gangs_run_where_the_api_server_of_1_36_serves_alpha_groups() -> Result<()> {
    let cluster = cluster(Options {
        kubernetes: "1.36.3".into(),
        gates: GATE.into(),
        api_server: vec![served("v1alpha2")],
        ..Options::named("native-alpha")
    })
    .await?;
    if !cluster.has_nodes("alpha groups") {
        return Ok(());
    }
    let manager = cluster.start_manager("a").await?;
    shows(&manager.metrics, &["v1alpha2"], "kept").await?;
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    scenario(&cluster, "alpha", &shape, async |t| {
        t.create(gang("g", 2, 8, json!({}))).await?;
        t.running("g").await.map(drop)
    })
    .await
}

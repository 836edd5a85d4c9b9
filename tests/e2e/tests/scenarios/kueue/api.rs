//! Kueue's API goes away and comes back.

use anyhow::{Context, Result, bail, ensure};
use lockstep_api::workload::Phase;
use lockstep_cluster::scenario::{PATIENCE, Scenario, uids};
use lockstep_cluster::{Cluster, eventually};
use serde_json::{Value, json};

use super::{finish, has, is_in, on_kueue, queued, waits};

/// Definition of Kueue's Workloads.
const CRD: &str = "workloads.kueue.x-k8s.io";

/// Makes the API server serve all kinds of Kueue or none.
async fn serve(cluster: &Cluster, served: bool) -> Result<()> {
    let crds = cluster.kubectl(&["get", "crd", "-o", "json"]).await?;
    let crds: Value = serde_json::from_str(&crds)?;
    let all = crds["items"].as_array().context("a list")?;
    for crd in all
        .iter()
        .filter(|c| c["spec"]["group"] == "kueue.x-k8s.io")
    {
        let versions = crd["spec"]["versions"].as_array().context("versions")?;
        let change = |i: usize| json!({"op": "replace", "path": format!("/spec/versions/{i}/served"), "value": served});
        let patch = Value::Array((0..versions.len()).map(change).collect()).to_string();
        let name = crd["metadata"]["name"].as_str().context("a name")?;
        let patch = ["patch", "crd", name, "--type=json", "-p", &patch];
        cluster.kubectl(&patch).await?;
    }
    Ok(())
}

/// Waits until one of two gangs runs, ends it, and does the same with the other.
async fn both_run_and_finish(t: &Scenario<'_>, names: [&str; 2]) -> Result<()> {
    let first = eventually("a gang to run", PATIENCE, async || {
        for name in names {
            let status = t.workloads().get(name).await?.status;
            if status.and_then(|s| s.phase) == Some(Phase::Running) {
                return Ok(name);
            }
        }
        bail!("none runs")
    })
    .await?;
    finish(t, first).await?;
    for other in names.into_iter().filter(|name| *name != first) {
        finish(t, other).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-kueue"]
async fn gangs_run_on_and_wait_while_the_api_of_kueue_is_not_served() -> Result<()> {
    let short = json!({"resyncPeriod": "1s"});
    on_kueue("kueue-unserved", 16, short, async |s, t| {
        t.create(queued("runs", 2, json!({}))).await?;
        let before = t.running("runs").await?;
        t.create(queued("waits", 2, json!({}))).await?;
        waits(t, "waits").await?;
        serve(s.cluster, false).await?;
        t.create(queued("new", 2, json!({}))).await?;
        eventually("the reason why it waits", PATIENCE, async || {
            for name in ["new", "waits"] {
                let message = waits(t, name).await?;
                ensure!(message.contains("does not serve"), "{message}");
            }
            Ok(())
        })
        .await?;
        ensure!(uids(&before) == uids(&t.running("runs").await?));
        for pod in &before {
            t.exit(pod, 0).await?;
        }
        is_in(t, "runs", Phase::Succeeded).await?;
        waits(t, "waits").await?;
        serve(s.cluster, true).await?;
        both_run_and_finish(t, ["waits", "new"]).await?;
        has(t, "runs", "Finished").await?;
        s.usage.ends(PATIENCE).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-kueue"]
async fn gangs_stop_when_the_definition_of_workloads_is_deleted_and_queue_again_later() -> Result<()>
{
    let short = json!({"resyncPeriod": "1s"});
    on_kueue("kueue-removed", 16, short, async |s, t| {
        t.create(queued("runs", 2, json!({}))).await?;
        t.running("runs").await?;
        t.create(queued("waits", 2, json!({}))).await?;
        waits(t, "waits").await?;
        s.cluster.kubectl(&["delete", "crd", CRD]).await?;
        t.none_runs("runs").await?;
        for name in ["runs", "waits"] {
            waits(t, name).await?;
        }
        s.kueue.kill()?;
        s.kueue.define().await?;
        s.kueue.restart().await?;
        both_run_and_finish(t, ["runs", "waits"]).await?;
        s.usage.ends(PATIENCE).await
    })
    .await
}

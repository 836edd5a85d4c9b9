//! What an API server that refuses requests does to a restart.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, Scenario, uids};
use lockstep_cluster::{eventually, scenario};
use lockstep_e2e::fresh;
use lockstep_process::api_server::kube_config;
use lockstep_process::connection::connect;
use serde_json::json;

/// Everything is refused in a priority level with ten requests a second and more.
const REFUSING: &str = r#"{"refuseEvery": 1, "retryAfterSeconds": 1, "quietBelow": 10}"#;
/// Between two requests of a storm.
const PACE: Duration = Duration::from_millis(10);

/// Asks something in the level in which a manager makes pods.
async fn ask(client: &Client) -> kube::Result<()> {
    let pods: Api<Pod> = Api::all(client.clone());
    pods.list(&ListParams::default().limit(1)).await.map(drop)
}

/// Asks again and again, whatever is answered.
async fn storm(client: &Client) -> Result<()> {
    let mut pace = tokio::time::interval(PACE);
    loop {
        pace.tick().await;
        let _ = ask(client).await;
    }
}

async fn refused(client: &Client) -> Result<()> {
    let error = ask(client).await.err().context("an answer")?;
    ensure!(
        matches!(&error, kube::Error::Api(status) if status.code == 429),
        "{error}"
    );
    Ok(())
}

/// A member dies and everybody is back, with the pods that there were.
async fn restarts_in_place(t: &Scenario<'_>) -> Result<()> {
    let before = t.pods("g").await?;
    t.exit(before.first().context("a pod")?, 3).await?;
    t.restarted("g", 1).await?;
    let after = t.pods("g").await?;
    ensure!(uids(&before) == uids(&after), "pods were recreated");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_place_needs_nothing_of_the_level_in_which_a_manager_makes_pods() -> Result<()>
{
    let cluster = fresh("overload", json!({})).await?;
    if !cluster.is_stand_in("an API server that refuses") {
        return Ok(());
    }
    let _manager = cluster.start_manager("a").await?;
    let kubeconfig = cluster.kubeconfig_for("sa:lockstep-system:lockstep-manager")?;
    let client = connect(kube_config(Some(&kubeconfig)).await?)?;
    scenario(&cluster, "overload", &Shape::default(), async |t| {
        t.create(gang("g", 2, 8, json!({}))).await?;
        t.running("g").await?;
        t.cluster.slow_down(Some(REFUSING))?;
        tokio::select! {
            ended = storm(&client) => ended,
            restarted = async {
                eventually("requests in that level to be refused", PATIENCE, async || {
                    refused(&client).await
                })
                .await?;
                restarts_in_place(t).await?;
                refused(&client).await
            } => restarted,
        }
    })
    .await
}

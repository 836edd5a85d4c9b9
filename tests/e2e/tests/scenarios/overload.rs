//! Effect of an API server that refuses requests on a restart.

use anyhow::{Context, Result, ensure};
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::flowcontrol::v1::PriorityLevelConfiguration;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, Scenario, uids};
use lockstep_cluster::{eventually, scenario};
use lockstep_common::api_server::kube_config;
use lockstep_common::connection::connect;
use lockstep_e2e::fresh;
use serde_json::json;

/// Concurrent requests of a storm.
const CONCURRENT: usize = 16;

/// Sends a request in the priority level in which a manager creates pods.
async fn ask(client: &Client) -> kube::Result<()> {
    let pods: Api<Pod> = Api::all(client.clone());
    pods.list(&ListParams::default().limit(1)).await.map(drop)
}

/// Removes the seats of the level in which the manager creates pods. API Priority and Fairness
/// still admits a request there if no other is executing.
async fn take_seats(t: &Scenario<'_>) -> Result<()> {
    let limited = json!({"nominalConcurrencyShares": 0, "lendablePercent": 0,
        "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject", "queuing": null}});
    // Without this annotation, the API server restores its default levels.
    let own = json!({"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}});
    let patch = Patch::Merge(json!({"metadata": own, "spec": {"limited": limited}}));
    let levels: Api<PriorityLevelConfiguration> = Api::all(t.client.clone());
    levels
        .patch("workload-high", &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// Keeps that level busy, whatever the answers.
async fn storm(client: &Client) {
    let requests = (0..CONCURRENT).map(async |_| {
        loop {
            let _ = ask(client).await;
        }
    });
    join_all(requests).await;
}

async fn refused(client: &Client) -> Result<()> {
    let error = ask(client).await.err().context("an answer")?;
    ensure!(
        matches!(&error, kube::Error::Api(status) if status.code == 429),
        "{error}"
    );
    Ok(())
}

/// A member fails, and all members restart in the same pods.
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
    if !cluster.is_ours("an API server that refuses") {
        return Ok(());
    }
    let _manager = cluster.start_manager("a").await?;
    let kubeconfig = cluster
        .kubeconfig_for("sa:lockstep-system:lockstep-manager")
        .await?;
    let client = connect(kube_config(Some(&kubeconfig)).await?)?;
    scenario(&cluster, "overload", &Shape::default(), async |t| {
        t.create(gang("g", 2, 8, json!({}))).await?;
        t.running("g").await?;
        take_seats(t).await?;
        tokio::select! {
            () = storm(&client) => anyhow::bail!("the storm has ended"),
            restarted = async {
                eventually("requests in that level to be refused", PATIENCE, async || {
                    refused(&client).await
                })
                .await?;
                restarts_in_place(t).await?;
                eventually("requests in that level to be refused still", PATIENCE, async || {
                    refused(&client).await
                })
                .await
            } => restarted,
        }
    })
    .await
}

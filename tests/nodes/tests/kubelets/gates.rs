//! A cluster with other feature gates: no restart rules, therefore tier Plain, and custom stop
//! signals. `make test-kubelets` runs these tests in a separate process.

use anyhow::{Result, ensure};
use kube::api::{DeleteParams, ListParams};
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::eventually;
use lockstep_cluster::scenario::Scenario;
use lockstep_containers::Job;
use lockstep_nodes::RealCluster;
use lockstep_nodes::real_cluster::{Gates, LIMIT};
use serde_json::json;

use crate::tiers::restarts_in_place;
use crate::{installed, on_cluster};

async fn on_gated_nodes(
    name: &str,
    body: impl AsyncFnOnce(&RealCluster, &Scenario<'_>) -> Result<()>,
) -> Result<()> {
    let gates = Gates::from([
        ("ContainerRestartRules", false),
        ("ContainerStopSignals", true),
        ("RestartAllContainersOnContainerExits", false),
    ]);
    on_cluster(name, async |nodes| installed(nodes, &gates).await, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelets_without_restart_rules_restart_containers_by_restart_policy() -> Result<()> {
    on_gated_nodes("plain", async |real, t| {
        restarts_in_place(real, t, "plain").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervised_member_receives_the_stop_signal_of_its_template() -> Result<()> {
    on_gated_nodes("stop-signal", async |_, t| {
        let job = Job::of(t, "gpt", 2)?;
        let script = "trap 'touch /job/stopped-$PET_NODE_RANK; exit 0' INT; touch /job/runs-$PET_NODE_RANK; \
                      while :; do sleep 0.1; done";
        let stops = json!({"command": ["sh", "-c", script], "lifecycle": {"stopSignal": "SIGINT"}});
        let mut object = job.manifest(json!({}), stops)?;
        let pod = &mut object["spec"]["groups"][0]["template"]["spec"];
        pod["os"] = json!({"name": "linux"});
        // Longer than the test: only the signal ends the containers.
        pod["terminationGracePeriodSeconds"] = json!(600);
        t.create(object).await?;
        t.condition_is("gpt", types::RESTARTS_IN_PLACE, true, reasons::SUPERVISED)
            .await?;
        each_member_has(&job, "runs").await?;
        t.workloads()
            .delete("gpt", &DeleteParams::default())
            .await?;
        each_member_has(&job, "stopped").await?;
        eventually("the pods to end", LIMIT, async || {
            let left = t.all_pods().list(&ListParams::default()).await?.items;
            ensure!(left.is_empty(), "{} pods", left.len());
            Ok(())
        })
        .await
    })
    .await
}

async fn each_member_has(job: &Job, file: &str) -> Result<()> {
    eventually(&format!("each member to write {file}"), LIMIT, async || {
        for rank in 0..2 {
            let file = job.folder().join(format!("{file}-{rank}"));
            ensure!(file.exists(), "rank {rank} has not");
        }
        Ok(())
    })
    .await
}

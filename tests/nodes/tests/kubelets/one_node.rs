//! Scenarios for one node, which `make test` runs if the machine allows it.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use lockstep_api::condition::{reasons, types};
use lockstep_api::workload::CheckpointOccasion;
use lockstep_cluster::scenario::kept;
use lockstep_cluster::{eventually, install};
use lockstep_containers::job::CHECKPOINT_EVERY;
use lockstep_nodes::incidents::{GPT, restarts_in_containers, started};
use lockstep_nodes::real_cluster::LIMIT;
use serde_json::json;

use crate::requests::saved_for;
use crate::starts::not_ready_says;
use crate::tiers::restarts_in_place;
use crate::{kill_restarts_in_containers, on_nodes};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_restarts_in_place() -> Result<()> {
    on_nodes("killed", async |real, t| {
        let (job, before) = started(t, real.members(), json!({}), json!({})).await?;
        t.condition_is("gpt", types::RESTARTS_IN_PLACE, true, reasons::SUPERVISED)
            .await?;
        let cause = kill_restarts_in_containers(real, t, &job, &before, 1).await?;
        ensure!(
            cause.pod == before[1].name_any() && cause.exit_code == Some(137),
            "{cause:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn history_tells_an_exit_code_from_an_oom_kill() -> Result<()> {
    on_nodes("causes", async |real, t| {
        let limited = json!({"resources": {"limits": {"nvidia.com/gpu": 4, "memory": "64Mi"}}});
        let (job, before) = started(t, real.members(), json!({}), limited).await?;
        let exit = async || job.command(1, "exit 42");
        let cause = restarts_in_containers(t, &job, &before, exit).await?.cause;
        ensure!(
            cause.exit_code == Some(42) && cause.pod == before[1].name_any(),
            "{cause:?}"
        );
        let leak = async || job.command(0, "leak");
        let cause = restarts_in_containers(t, &job, &before, leak).await?.cause;
        ensure!(
            cause.reason == "OOMKilled" && cause.pod == before[0].name_any(),
            "{cause:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelets_restart_all_containers_of_a_gang() -> Result<()> {
    on_nodes("restart-all", async |real, t| {
        restarts_in_place(real, t, "restart-all").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_of_all_agents_disturbs_no_member() -> Result<()> {
    on_nodes("upgrade", async |real, t| {
        let (job, before) = started(t, real.members(), json!({}), json!({})).await?;
        let (namespace, name) = install::AGENT;
        let agents = format!("daemonset/{name}");
        let rollout = async |verb| {
            let words = ["rollout", verb, &*agents, "-n", namespace];
            t.cluster.kubectl(&words).await
        };
        rollout("restart").await?;
        eventually("the agents to be replaced", LIMIT, async || {
            rollout("status").await
        })
        .await?;
        kept(&before, &t.running("gpt").await?, 0)?;
        kill_restarts_in_containers(real, t, &job, &before, 0)
            .await
            .map(drop)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_names_a_config_map_that_is_missing() -> Result<()> {
    let env = json!({"envFrom": [{"configMapRef": {"name": "absent"}}]});
    not_ready_says("config", env, "absent").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_saves_before_a_deletion_and_a_suspension_stop_it() -> Result<()> {
    on_nodes("checkpoint", async |real, t| {
        let asks =
            json!({"checkpoint": {"onRequest": {"signal": "SIGTERM", "timeoutSeconds": 20}}});
        let (job, before) = started(t, real.members(), asks, json!({})).await?;
        let most = i64::from(CHECKPOINT_EVERY);
        let pod = before[1].name_any();
        let delete = ["delete", "pod", &*pod, "-n", &*t.name, "--wait=false"];
        t.cluster.kubectl(&delete).await?;
        let status = t.restarted(GPT, 1).await?;
        saved_for(t, GPT, CheckpointOccasion::Eviction, most).await?;
        ensure!(status.restarts.counted == 0, "{:?}", status.restarts);
        t.patch_spec(GPT, json!({"suspend": true})).await?;
        saved_for(t, GPT, CheckpointOccasion::Suspend, most).await?;
        let (occasion, _) = job.checkpoint()?;
        ensure!(occasion == "stop", "the last checkpoint was {occasion}");
        Ok(())
    })
    .await
}

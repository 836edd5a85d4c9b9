//! Starts that cannot succeed, and starts at the expense of others.

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use lockstep_api::condition::types;
use lockstep_api::workload::Phase;
use lockstep_cluster::eventually;
use lockstep_cluster::manifests::{gang, merge};
use lockstep_containers::containerd::IMAGE;
use lockstep_containers::job::now;
use lockstep_nodes::real_cluster::LIMIT;
use serde_json::{Value, json};

use crate::{job, on_nodes, trains};

/// Creates a gang whose training container is changed, and waits for a message of `Ready` with this.
async fn not_ready_says(name: &str, container: Value, expected: &str) -> Result<()> {
    on_nodes(name, async |_, t| {
        let mut object = gang("gpt", 2, 4, json!({}));
        let training = &mut object["spec"]["groups"][0]["template"]["spec"]["containers"][0];
        merge(
            training,
            json!({"image": IMAGE, "command": ["sleep", "1000"]}),
        );
        merge(training, container);
        t.create(object).await?;
        eventually("the cause in Ready", LIMIT, async || {
            let status = t.workloads().get("gpt").await?.status.context("status")?;
            let ready = lockstep_api::condition::find(&status.conditions, types::READY);
            let ready = ready.context("no condition Ready")?;
            ensure!(ready.message.contains(expected), "{}", ready.message);
            Ok(())
        })
        .await?;
        t.workloads()
            .delete("gpt", &DeleteParams::default())
            .await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_names_an_image_that_cannot_be_pulled() -> Result<()> {
    let image = json!({"image": "registry.invalid/none:1"});
    not_ready_says("image", image, "registry.invalid/none:1").await
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_names_a_config_map_that_is_missing() -> Result<()> {
    let env = json!({"envFrom": [{"configMapRef": {"name": "absent"}}]});
    not_ready_says("config", env, "absent").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preempted_job_saves_its_work_and_continues_from_there() -> Result<()> {
    on_nodes("preempted", async |real, t| {
        for (class, value) in [("research", "100"), ("production", "1000")] {
            let create = ["create", "priorityclass", class, "--value", value];
            real.cluster.kubectl(&create).await?;
        }
        let gpt = job(t, "gpt", 6)?;
        let class = |name: &str| json!({"priorityClassName": name});
        t.create(gpt.manifest(class("research"), json!({}))?)
            .await?;
        trains(t, "gpt", &gpt, 0).await?;
        let urgent = job(t, "urgent", 4)?;
        t.create(urgent.manifest(class("production"), json!({}))?)
            .await?;
        trains(t, "urgent", &urgent, 0).await?;
        let (occasion, step) = gpt.checkpoint()?;
        ensure!(occasion == "stop", "the last checkpoint was {occasion}");
        t.workload("gpt", "to wait", |w| {
            let status = w.status.as_ref().context("a status")?;
            ensure!(
                status.preemptions == 1 && status.phase == Some(Phase::Pending),
                "{:?}",
                status.phase
            );
            ensure!(status.restarts.counted == 0, "a restart was charged");
            Ok(())
        })
        .await?;
        let freed = now()?;
        let none = DeleteParams::default();
        t.workloads().delete("urgent", &none).await?;
        trains(t, "gpt", &gpt, freed).await?;
        ensure!(gpt.step()? > step, "it began before its checkpoint");
        Ok(())
    })
    .await
}

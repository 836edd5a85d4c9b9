//! Starts that cannot succeed, and starts that preempt.

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use lockstep_api::condition::types;
use lockstep_api::workload::Phase;
use lockstep_cluster::eventually;
use lockstep_cluster::manifests::{gang, merge};
use lockstep_containers::containerd::IMAGE;
use lockstep_containers::job::preempted_job_resumes;
use lockstep_nodes::real_cluster::LIMIT;
use serde_json::{Value, json};

use crate::on_nodes;

/// Creates a gang with a changed training container, and waits until the message of `Ready`
/// contains this text.
pub(crate) async fn not_ready_says(name: &str, container: Value, expected: &str) -> Result<()> {
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
async fn history_names_a_command_that_cannot_start() -> Result<()> {
    on_nodes("command", async |_, t| {
        let mut object = gang(
            "gpt",
            2,
            4,
            json!({"failurePolicy": {"limits": {"maxRestarts": 1}}}),
        );
        let training = &mut object["spec"]["groups"][0]["template"]["spec"]["containers"][0];
        merge(training, json!({"image": IMAGE, "command": ["/absent"]}));
        t.create(object).await?;
        t.workload("gpt", "to fail", |w| {
            let status = w.status.as_ref().context("a status")?;
            ensure!(status.phase == Some(Phase::Failed), "{:?}", status.phase);
            ensure!(status.message.contains("/absent"), "{}", status.message);
            Ok(())
        })
        .await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preempted_job_saves_its_work_and_continues_from_there() -> Result<()> {
    on_nodes("preempted", async |real, t| {
        let saved = preempted_job_resumes(t, real.members(), 4).await?;
        ensure!(saved > 0, "it was stopped before its first step");
        Ok(())
    })
    .await
}

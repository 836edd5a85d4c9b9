//! Tier Supervised: restarts inside the containers.

use anyhow::{Result, ensure};
use kube::api::DeleteParams;
use lockstep_cluster::eventually;
use lockstep_cluster::scenario::kept;
use lockstep_containers::Job;
use lockstep_nodes::incidents::started;
use lockstep_nodes::real_cluster::LIMIT;
use rustix::process::Signal;
use serde_json::json;

use crate::{kill_restarts_in_containers, on_nodes, restarted};

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_place_leaves_init_containers_and_sidecars_alone() -> Result<()> {
    on_nodes("sidecars", async |real, t| {
        let job = Job::of(t, "gpt", 4)?;
        let mut object = job.manifest(json!({}), json!({}))?;
        let image = lockstep_containers::containerd::IMAGE;
        let pod = &mut object["spec"]["groups"][0]["template"]["spec"];
        pod["initContainers"] = json!([
            {"name": "prepare", "image": image, "command": ["true"]},
            {"name": "sidecar", "image": image, "command": ["sleep", "1000"], "restartPolicy": "Always"},
        ]);
        t.create(object).await?;
        let before = job.trains(t, 0).await?;
        kill_restarts_in_containers(real, t, &job, &before, 1).await?;
        for pod in &t.running("gpt").await? {
            let status = pod.status.as_ref();
            let all = status.and_then(|s| s.init_container_statuses.as_ref());
            let again = all.into_iter().flatten().find(|s| s.restart_count > 0);
            ensure!(again.is_none(), "{again:?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_members_run_their_hook_and_save_their_work() -> Result<()> {
    on_nodes("hooks", async |_, t| {
        let hook = ["sh", "-c", "touch /job/hook-$PET_NODE_RANK"];
        let hooks = json!({"lifecycle": {"preStop": {"exec": {"command": hook}}}});
        let (job, _) = started(t, 2, json!({}), hooks).await?;
        t.workloads()
            .delete("gpt", &DeleteParams::default())
            .await?;
        eventually("hooks and a checkpoint", LIMIT, async || {
            for rank in 0..2 {
                let hook = job.folder().join(format!("hook-{rank}"));
                ensure!(hook.exists(), "the hook of rank {rank} has not run");
            }
            let (occasion, _) = job.checkpoint()?;
            ensure!(occasion == "stop", "the last checkpoint was {occasion}");
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_under_restricted_pod_security_restarts_in_place() -> Result<()> {
    on_nodes("restricted", async |real, t| {
        let label = "pod-security.kubernetes.io/enforce=restricted";
        t.cluster
            .kubectl(&["label", "namespace", &t.name, label])
            .await?;
        // Restricted pods cannot mount folders of the node, so this pod has no journal.
        let mut object = lockstep_cluster::manifests::gang("gpt", 2, 4, json!({}));
        let container = json!({
            "name": "trainer",
            "image": lockstep_containers::containerd::IMAGE,
            "command": ["sh", "-c", "sleep 1000"],
            "resources": {"limits": {"nvidia.com/gpu": 4}},
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        });
        object["spec"]["groups"][0]["template"]["spec"]["containers"] = json!([container]);
        t.create(object).await?;
        let before = t.running("gpt").await?;
        let killed = real.process(&before[0], "sleep")?;
        lockstep_containers::processes::signal(killed, Signal::KILL)?;
        restarted(t, 1).await?;
        let after = t.running("gpt").await?;
        kept(&before, &after, 0)?;
        ensure!(
            real.process(&after[0], "sleep")? != killed,
            "the process is the old one"
        );
        Ok(())
    })
    .await
}

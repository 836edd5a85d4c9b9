//! Tier Supervised: restarts inside the containers.

use std::fs;

use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::DeleteParams;
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::eventually;
use lockstep_cluster::scenario::{kept, uids};
use lockstep_containers::Job;
use lockstep_containers::job::{TRAINER, now};
use lockstep_nodes::real_cluster::LIMIT;
use rustix::process::Signal;
use serde_json::json;

use crate::{addresses, apart, on_nodes, restarted, restarts_in_containers, started};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_restarts_in_place() -> Result<()> {
    on_nodes("killed", async |real, t| {
        let (job, before) = started(t, 6, json!({}), json!({})).await?;
        t.condition_is("gpt", types::RESTARTS_IN_PLACE, true, reasons::SUPERVISED)
            .await?;
        let after = restarts_in_containers(real, t, &job, &before, 3).await?;
        let (_, cause) = restarted(t, "gpt", 1).await?;
        ensure!(
            cause.pod == before[3].name_any() && cause.exit_code == Some(137),
            "{cause:?}"
        );
        ensure!(addresses(&before) == addresses(&after), "addresses changed");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn history_tells_an_exit_code_from_an_oom_kill() -> Result<()> {
    on_nodes("causes", async |_, t| {
        let limited = json!({"resources": {"limits": {"nvidia.com/gpu": 4, "memory": "64Mi"}}});
        let (job, before) = started(t, 4, json!({}), limited).await?;

        let ordered = now()?;
        job.command(1, "exit 42")?;
        job.trains(t, ordered).await?;
        let (_, cause) = restarted(t, "gpt", 1).await?;
        ensure!(
            cause.exit_code == Some(42) && cause.pod == before[1].name_any(),
            "{cause:?}"
        );

        let ordered = now()?;
        job.command(2, "leak")?;
        let after = job.trains(t, ordered).await?;
        let (_, cause) = restarted(t, "gpt", 2).await?;
        ensure!(
            cause.reason == "OOMKilled" && cause.pod == before[2].name_any(),
            "{cause:?}"
        );
        kept(&before, &after, 0)?;
        apart(&job)
    })
    .await
}

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
        let after = restarts_in_containers(real, t, &job, &before, 1).await?;
        for pod in &after {
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
async fn probes_let_a_member_restart_in_place_and_end_one_that_is_sick() -> Result<()> {
    on_nodes("probes", async |real, t| {
        let probe = |command: &str| {
            let command = ["sh", "-c", command];
            json!({"exec": {"command": command}, "periodSeconds": 1, "failureThreshold": 2})
        };
        let runs = "test -e /job/journal-$PET_NODE_RANK";
        let probes = json!({
            "startupProbe": probe(runs),
            "readinessProbe": probe(runs),
            "livenessProbe": probe("test ! -e /job/sick-$PET_NODE_RANK"),
        });
        let (job, before) = started(t, 4, json!({}), probes).await?;
        restarts_in_containers(real, t, &job, &before, 1).await?;

        let sick = job.folder().join("sick-2");
        let ends = now()?;
        fs::write(&sick, "")?;
        let of_kubelet = real.process(&before[2], TRAINER)?;
        eventually("the kubelet to end the container", LIMIT, async || {
            let left = real.process(&before[2], TRAINER).ok() == Some(of_kubelet);
            ensure!(!left, "process {of_kubelet} runs");
            Ok(())
        })
        .await?;
        fs::remove_file(&sick)?;
        let after = job.trains(t, ends).await?;
        let (_, cause) = restarted(t, "gpt", 2).await?;
        // The trainer ends all members when one gets SIGTERM.
        ensure!(cause.exit_code == Some(143), "{cause:?}");
        ensure!(uids(&before) == uids(&after), "pods were replaced");
        apart(&job)
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
        // Restricted pods may mount no folder of the node, so this one has no journal.
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
        restarted(t, "gpt", 1).await?;
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

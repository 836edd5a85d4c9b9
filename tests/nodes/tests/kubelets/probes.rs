//! Probes that kubelets run.

use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_api::condition::{reasons, types};
use lockstep_api::names;
use lockstep_cluster::eventually;
use lockstep_cluster::scenario::{Scenario, kept, uids};
use lockstep_containers::Job;
use lockstep_containers::job::TRAINER;
use lockstep_nodes::RealCluster;
use lockstep_nodes::incidents::{apart, restarts, started};
use lockstep_nodes::real_cluster::LIMIT;
use serde_json::{Value, json};

use crate::{kill_restarts_in_containers, on_nodes};

/// While this file exists, the member fails its probes.
fn sick(rank: usize) -> String {
    format!("sick-{rank}")
}

/// A probe over HTTP, which the trainer answers.
fn http_probe() -> Value {
    json!({"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1, "failureThreshold": 2})
}

/// The workload of a job with probes over HTTP.
fn answers_probes(job: &Job, spec: Value, container: Value) -> Result<Value> {
    let mut object = job.manifest(spec, container)?;
    let pod = &mut object["spec"]["groups"][0]["template"]["spec"];
    let env = pod["containers"][0]["env"].as_array_mut().context("env")?;
    env.push(json!({"name": "HEALTH_PORT", "value": "8080"}));
    env.push(json!({"name": "SICK_FILE", "value": "/job/sick-$(PET_NODE_RANK)"}));
    Ok(object)
}

/// Lets a member fail its liveness probe until the kubelet has ended its container, and waits until
/// all members train again in their pods.
async fn sick_member_restarts(
    real: &RealCluster,
    t: &Scenario<'_>,
    job: &Job,
    before: &[Pod],
) -> Result<()> {
    let file = job.folder().join(sick(1));
    let process = real.process(&before[1], TRAINER)?;
    let trouble = async || {
        fs::write(&file, "")?;
        eventually("the kubelet to end the container", LIMIT, async || {
            let runs = real.process(&before[1], TRAINER).ok() == Some(process);
            ensure!(!runs, "process {process} runs");
            Ok(())
        })
        .await?;
        Ok(fs::remove_file(&file)?)
    };
    let (after, incident) = restarts(t, job, trouble).await?;
    // The trainer ends all members if one of them receives SIGTERM.
    let cause = incident.cause;
    ensure!(cause.exit_code == Some(143), "{cause:?}");
    ensure!(uids(before) == uids(&after), "pods were replaced");
    Ok(())
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
        kill_restarts_in_containers(real, t, &job, &before, 1).await?;
        sick_member_restarts(real, t, &job, &before).await?;
        apart(&job)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_readiness_probe_that_fails_over_http_restarts_no_member() -> Result<()> {
    on_nodes("readiness", async |real, t| {
        let job = Job::of(t, "gpt", 4)?;
        let probe = json!({"readinessProbe": http_probe()});
        t.create(answers_probes(&job, json!({}), probe)?).await?;
        let before = job.trains(t, 0).await?;
        let file = job.folder().join(sick(1));
        fs::write(&file, "")?;
        let message = t
            .condition_is("gpt", types::READY, false, reasons::MEMBERS_NOT_READY)
            .await?;
        ensure!(message.starts_with("3/4 members are ready"), "{message}");
        fs::remove_file(&file)?;
        kept(&before, &t.running("gpt").await?, 0)?;
        t.restarted("gpt", 0).await?;
        kill_restarts_in_containers(real, t, &job, &before, 2).await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_liveness_probe_over_http_leaves_restarts_to_the_kubelets() -> Result<()> {
    on_nodes("liveness", async |real, t| {
        let job = Job::of(t, "gpt", 4)?;
        let policy = json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Allow"}}});
        let probe = json!({"livenessProbe": http_probe()});
        t.create(answers_probes(&job, policy, probe)?).await?;
        let before = job.trains(t, 0).await?;
        for pod in &before {
            let tier = pod.annotations().get(names::annotations::TIER);
            ensure!(tier.is_some_and(|tier| tier == "restart-all"), "{tier:?}");
        }
        sick_member_restarts(real, t, &job, &before).await
    })
    .await
}

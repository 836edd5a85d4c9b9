//! `make demo-kubelets`: Lockstep on three real nodes, installed as a user installs it, live.
//!
//! Every step waits until its claim is observed. The exit code is 0 only if all claims were
//! observed.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_api::workload::HistoryEntry;
use lockstep_cluster::scenario::{Scenario, addresses, node};
use lockstep_cluster::stage::{Stage, timings};
use lockstep_containers::Job;
use lockstep_containers::job::preempted_job_resumes;
use lockstep_nodes::arms::{ARMS, CALM, place_to_ready, round};
use lockstep_nodes::figures::table;
use lockstep_nodes::incidents::{GPT, loses_a_node, node_to_lose, restarts_in_containers, started};
use lockstep_nodes::real_cluster::Gates;
use lockstep_nodes::{Images, RealCluster};
use rustix::process::Signal;
use serde_json::json;

const NODES: u8 = 3;
/// Leaves room on the nodes for the members of a lost node.
const MEMBERS: usize = 4;

#[tokio::main]
async fn main() -> Result<()> {
    let mut stage = Stage::begin();
    stage.say(&format!(
        "starting a control plane and {NODES} nodes: kubelet, containerd, CNI, DNS"
    ));
    let real = RealCluster::start("demo", NODES, Images::Development, &Gates::new()).await?;
    stage.say("kubectl apply -k config/overlays/full");
    real.install().await?;
    stage.say("managers and agents are ready");

    stage.act("act 1: one training, and what may happen to it");
    real.scenario("training", async |t| training(&mut stage, &real, t).await)
        .await?;

    stage.act("act 2: a node is lost");
    real.scenario("nodes", async |t| {
        let title = "its members move, and it returns";
        stage
            .step(title, async |s| node_lost(s, &real, t).await)
            .await;
        Ok(())
    })
    .await?;

    stage.act("act 3: priorities");
    real.scenario("priorities", async |t| {
        let title = "a preempted training continues from its checkpoint";
        stage
            .step(title, async |s| preempted(s, &real, t).await)
            .await;
        Ok(())
    })
    .await?;

    stage.act("act 4: the same failure by tier, one round each");
    let mut rounds = Vec::new();
    real.scenario("tiers", async |t| {
        for arm in &ARMS {
            let title = format!("one process is killed: {}", arm.name);
            stage
                .step(&title, async |_| {
                    let (measured, mixed) = round(&real, t, arm, arm.name).await?;
                    ensure!(mixed == 0, "two attempts have met");
                    rounds.push((arm.name, vec![measured]));
                    Ok("all members train again".into())
                })
                .await;
        }
        Ok(())
    })
    .await?;

    stage.act("act 5: uninstall");
    stage
        .step("make undeploy leaves nothing", async |_| {
            uninstalled(&real).await
        })
        .await;

    let all_seen = stage.summary();
    println!("{}", table(&rounds));
    ensure!(all_seen, "not every step was observed");
    Ok(())
}

async fn training(stage: &mut Stage, real: &RealCluster, t: &Scenario<'_>) -> Result<()> {
    let job = Job::of(t, GPT, MEMBERS)?;
    stage
        .step("a gang is placed whole", async |s| placed(s, t, &job).await)
        .await;
    stage
        .step("kill -9 of a process: all restart in place", async |_| {
            in_place(t, &job, "exit code 137", async |pods| {
                real.signal(pods.get(1).context("member 1")?, Signal::KILL)
            })
            .await
        })
        .await;
    stage
        .step("kubectl lockstep shows it", async |_| screens(t).await)
        .await;
    stage
        .step(
            "out of memory: all restart in place, after a back-off",
            async |_| in_place(t, &job, "OOMKilled", async |_| job.command(2, "leak")).await,
        )
        .await;
    Ok(())
}

async fn placed(s: &Stage, t: &Scenario<'_>, job: &Job) -> Result<String> {
    s.say(&format!("   `{GPT}`: {MEMBERS} members of 4 accelerators"));
    let limited = json!({"resources": {"limits": {"nvidia.com/gpu": 4, "memory": "64Mi"}}});
    t.create(job.manifest(json!({}), limited)?).await?;
    let pods = job.trains(t, 0).await?;
    for (pod, address) in pods.iter().zip(addresses(&pods)) {
        s.say(&format!("   {}  {}  {address}", node(pod), pod.name_any()));
    }
    let took = place_to_ready(t, GPT).await?.num_milliseconds();
    Ok(format!(
        "{} members train, {took} ms after their placement",
        pods.len()
    ))
}

/// After `trouble` to a member, all members restart in their containers, with this cause.
async fn in_place(
    t: &Scenario<'_>,
    job: &Job,
    expected: &str,
    trouble: impl AsyncFnOnce(&[Pod]) -> Result<()>,
) -> Result<String> {
    tokio::time::sleep(CALM).await;
    let before = t.running(GPT).await?;
    let incident = restarts_in_containers(t, job, &before, async || trouble(&before).await).await?;
    let cause = cause(&incident);
    ensure!(cause.contains(expected), "the cause is {cause}");
    Ok(format!(
        "{cause}; same UIDs and addresses, no container restarted; {}",
        timings(&incident)?
    ))
}

fn cause(incident: &HistoryEntry) -> String {
    let cause = &incident.cause;
    let code = cause.exit_code.map(|code| format!(", exit code {code}"));
    let (kind, reason) = (cause.kind.as_str(), &cause.reason);
    format!("{kind} {} {reason}{}", cause.pod, code.unwrap_or_default())
}

async fn screens(t: &Scenario<'_>) -> Result<String> {
    let screens = [
        &["status", GPT][..],
        &["explain", GPT],
        &["logs", GPT, "--failed"],
    ];
    for screen in screens {
        let text = t.lockstep(screen).await?;
        ensure!(!text.trim().is_empty(), "{screen:?} is empty");
        println!("\n$ kubectl lockstep {}\n{text}", screen.join(" "));
    }
    Ok(format!("{} screens", screens.len()))
}

/// With a new workload, whose restart has no back-off.
async fn node_lost(s: &Stage, real: &RealCluster, t: &Scenario<'_>) -> Result<String> {
    let policy = json!({"failurePolicy": {"nodeLostSeconds": 5}});
    let (job, before) = started(t, MEMBERS, policy, json!({})).await?;
    let lost = node_to_lose(&before)?;
    s.say(&format!(
        "   the link of {lost} goes down until its members train elsewhere"
    ));
    let incident = loses_a_node(real, t, &job, &lost).await?;
    let moved = before.iter().filter(|pod| node(pod) == lost).count();
    Ok(format!(
        "{moved} members moved, {} restarted in their containers; {}",
        before.len() - moved,
        timings(&incident)?
    ))
}

async fn preempted(s: &Stage, real: &RealCluster, t: &Scenario<'_>) -> Result<String> {
    let members = real.members();
    s.say(&format!(
        "   `{GPT}`: {members} members fill the nodes; `urgent`, of higher priority, needs 4 of their places"
    ));
    let saved = preempted_job_resumes(t, members, 4).await?;
    Ok(format!(
        "saved at step {saved}, continued from there once `urgent` was deleted"
    ))
}

async fn uninstalled(real: &RealCluster) -> Result<String> {
    real.cluster.make(&["undeploy"]).await?;
    real.removed().await?;
    Ok("no object, no process".into())
}

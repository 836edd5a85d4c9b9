//! The second act: many nodes whose programs are simulated.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_api::condition::{reasons, types};
use lockstep_api::workload::Phase;
use lockstep_cluster::cluster::repository;
use lockstep_cluster::manifests::{gang, parse};
use lockstep_cluster::scenario::{Scenario, node, restarts, uids};
use lockstep_cluster::stage::{Stage, timings};
use serde_json::json;

/// Performs all steps, also after a step that fails.
pub async fn perform(stage: &mut Stage, t: &Scenario<'_>) {
    stage
        .step("a gang is placed whole", async |s| placed(s, t).await)
        .await;
    stage
        .step("a gang without capacity waits, and says why", async |s| {
            waiting(s, t).await
        })
        .await;
    stage
        .step(
            "one member dies, all restart inside their containers",
            async |s| in_place(s, t).await,
        )
        .await;
    stage
        .step("a node is lost, its member moves", async |s| {
            node_lost(s, t).await
        })
        .await;
    stage
        .step("a more important gang preempts a whole gang", async |s| {
            preempted(s, t).await
        })
        .await;
    stage
        .step("the victim runs again when there is capacity", async |s| {
            resumed(s, t).await
        })
        .await;
    stage
        .step("a code that no restart can mend fails at once", async |s| {
            fatal(s, t).await
        })
        .await;
}

async fn placed(s: &Stage, t: &Scenario<'_>) -> Result<String> {
    s.say("   `llama`: 32 members of 8 accelerators; and samples/01-minimal.yaml with its 4");
    t.create(gang(
        "llama",
        32,
        8,
        json!({"priorityClassName": "research"}),
    ))
    .await?;
    t.create(parse(&std::fs::read_to_string(
        repository().join("samples/01-minimal.yaml"),
    )?)?)
    .await?;
    let (llama, minimal) = (t.running("llama").await?, t.running("minimal").await?);
    ensure!(
        llama.len() == 32 && minimal.len() == 4,
        "{} and {} pods",
        llama.len(),
        minimal.len()
    );
    Ok(format!(
        "{} and {} of their pods run on {} nodes",
        llama.len(),
        minimal.len(),
        nodes(&[llama, minimal].concat())
    ))
}

fn nodes(pods: &[Pod]) -> usize {
    pods.iter()
        .map(node)
        .collect::<std::collections::BTreeSet<_>>()
        .len()
}

async fn waiting(s: &Stage, t: &Scenario<'_>) -> Result<String> {
    s.say("   `mistral`: 40 members, and 28 nodes are free");
    t.create(gang(
        "mistral",
        40,
        8,
        json!({"priorityClassName": "research"}),
    ))
    .await?;
    let why = t
        .condition_is("mistral", types::ADMITTED, false, reasons::UNSCHEDULABLE)
        .await?;
    let pods = t.pods("mistral").await?.len();
    ensure!(pods == 0, "{pods} pods exist");
    t.workloads()
        .delete("mistral", &kube::api::DeleteParams::default())
        .await?;
    Ok(format!("no pod; {why}"))
}

async fn in_place(s: &Stage, t: &Scenario<'_>) -> Result<String> {
    let before = t.running("llama").await?;
    let killed = before.get(7).context("member 7")?;
    s.say(&format!("   kill -9 in {}", killed.name_any()));
    t.exit(killed, 137).await?;
    let status = t.restarted("llama", 1).await?;
    let after = t.running("llama").await?;
    ensure!(uids(&before) == uids(&after), "pods were replaced");
    ensure!(
        after.iter().all(|p| restarts(p) == 0),
        "some container was restarted"
    );
    let incident = status.history.first().context("history")?;
    Ok(format!(
        "all {} in the same containers after {}",
        after.len(),
        timings(incident)?
    ))
}

async fn node_lost(s: &Stage, t: &Scenario<'_>) -> Result<String> {
    let before = t.running("llama").await?;
    let member = before.first().context("a member")?;
    let lost = node(member);
    s.say(&format!(
        "   {lost} falls silent with {}",
        member.name_any()
    ));
    t.patch_spec("llama", json!({"failurePolicy": {"nodeLostSeconds": 2}}))
        .await?;
    t.nodes.vanish(&lost).await?;
    t.restarted("llama", 2).await?;
    let after = t.running("llama").await?;
    let kept = before
        .iter()
        .zip(&after)
        .filter(|(b, a)| b.uid() == a.uid())
        .count();
    ensure!(
        kept == before.len() - 1,
        "{kept} of {} pods were kept",
        before.len()
    );
    ensure!(
        after.iter().all(|p| node(p) != lost),
        "a member is still on the lost node"
    );
    t.nodes.come_back(&lost).await?;
    Ok(format!(
        "{kept} restarted in place, 1 made anew on {}",
        node(after.first().context("a member")?)
    ))
}

async fn preempted(s: &Stage, t: &Scenario<'_>) -> Result<String> {
    s.say("   `serving`, priority production: 48 members, more than are free");
    t.create(gang(
        "serving",
        48,
        8,
        json!({"priorityClassName": "production"}),
    ))
    .await?;
    let pods = t.running("serving").await?;
    let victim = t
        .workload("llama", "to wait again", |w| {
            let status = w.status.as_ref().context("status")?;
            ensure!(
                status.preemptions == 1 && status.phase == Some(Phase::Pending),
                "{:?}",
                status.phase
            );
            Ok(())
        })
        .await?;
    let left = t.pods("llama").await?.len();
    ensure!(left == 0, "{left} pods of the victim are left");
    let counted = victim.status.context("status")?.restarts.counted;
    Ok(format!(
        "{} members run; `llama` left whole and waits, budget used: {counted}",
        pods.len()
    ))
}

async fn resumed(s: &Stage, t: &Scenario<'_>) -> Result<String> {
    s.say("   `serving` is deleted");
    t.workloads()
        .delete("serving", &kube::api::DeleteParams::default())
        .await?;
    let pods = t.running("llama").await?;
    Ok(format!("{} members of `llama` run again", pods.len()))
}

async fn fatal(s: &Stage, t: &Scenario<'_>) -> Result<String> {
    let policy = json!({"failurePolicy": {"rules": [
        {"name": "bad-arguments", "match": {"exitCodes": {"operator": "In", "values": [2]}}, "action": "FailWorkload"}]}});
    t.create(gang("typo", 2, 8, policy)).await?;
    let pods = t.running("typo").await?;
    s.say("   a member of `typo` exits with 2, for which its policy says FailWorkload");
    t.exit(pods.first().context("a pod")?, 2).await?;
    let (reason, message) = t.condition("typo", types::FAILED).await?;
    Ok(format!("{reason}: {message}"))
}

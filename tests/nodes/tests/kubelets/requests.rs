//! Checkpoints on request before each kind of stop, of a gang that has the field beside one that has
//! not. Both save on SIGUSR1, which only Lockstep sends, and no regular checkpoint is due in time.
//! Three nodes.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use lockstep_api::workload::{CheckpointOccasion, CheckpointOutcome, Phase};
use lockstep_cluster::eventually;
use lockstep_cluster::scenario::{Scenario, node};
use lockstep_containers::Job;
use lockstep_nodes::RealCluster;
use lockstep_nodes::real_cluster::LIMIT;
use serde_json::{Value, json};

use crate::on_nodes;

/// Steps between two regular checkpoints, 10 ms each: none during a test.
const REGULAR: u64 = 1_000_000;
/// Steps that are at stake before each stop.
const AT_STAKE: u64 = 200;
/// The gang that saves on request, and the gang without the field.
const GANGS: [&str; 2] = ["asked", "unasked"];
const URGENT: &str = "urgent";

/// Waits for the outcome of a request for this reason and checks that it is a checkpoint that lost
/// fewer steps than this.
pub(crate) async fn saved_for(
    t: &Scenario<'_>,
    name: &str,
    reason: CheckpointOccasion,
    most: i64,
) -> Result<i64> {
    let what = format!("{name} to have saved for {reason:?}");
    let last = eventually(&what, LIMIT, async || {
        let last = t.checkpoint_request(name).await?;
        ensure!(last.reason == reason, "{last:?}");
        Ok(last)
    })
    .await?;
    let saved = [CheckpointOutcome::Saved, CheckpointOutcome::Ended].map(Some);
    let steps = last.steps_lost.context("steps lost")?;
    ensure!(saved.contains(&last.outcome) && steps < most, "{last:?}");
    Ok(steps)
}

fn manifest(job: &Job, name: &str, spec: Value) -> Result<Value> {
    let mut object = job.manifest(spec, json!({}))?;
    if name == GANGS[0] {
        object["spec"]["checkpoint"] =
            json!({"onRequest": {"signal": "SIGUSR1", "timeoutSeconds": 20}});
    }
    let env = &mut object["spec"]["groups"][0]["template"]["spec"]["containers"][0]["env"];
    let env = env.as_array_mut().context("variables")?;
    env.retain(|v| v["name"] != "CHECKPOINT_EVERY");
    env.push(json!({"name": "CHECKPOINT_EVERY", "value": REGULAR.to_string()}));
    env.push(json!({"name": "SAVE_SIGNAL", "value": "10"}));
    Ok(object)
}

/// Starts both gangs of two members.
async fn pair(t: &Scenario<'_>, spec: &Value) -> Result<[Job; 2]> {
    let start = async |name| {
        let job = Job::of(t, name, 2)?;
        t.create(manifest(&job, name, spec.clone())?).await?;
        job.trains(t, 0).await?;
        anyhow::Ok(job)
    };
    Ok([start(GANGS[0]).await?, start(GANGS[1]).await?])
}

/// Waits until steps are at stake. Returns the step.
async fn at_stake(job: &Job) -> Result<u64> {
    eventually("steps since the last checkpoint", LIMIT, async || {
        let (begun, step) = (job.begun_at()?, job.step()?);
        ensure!(step >= begun + AT_STAKE, "step {step} since {begun}");
        Ok(step)
    })
    .await
}

/// What an interruption cost.
fn report(occasion: &str, name: &str, steps: &str) -> Result<()> {
    Ok(writeln!(
        std::io::stderr(),
        "{occasion}: {name} lost {steps} steps"
    )?)
}

/// Checks after a stop for which gang `asked` got a request, while it trains again: it continues
/// behind its step before the stop, the other one from its last regular checkpoint.
async fn continues(
    t: &Scenario<'_>,
    jobs: &[Job; 2],
    before: [u64; 2],
    reason: CheckpointOccasion,
) -> Result<()> {
    let lost = saved_for(t, GANGS[0], reason, 2).await?;
    let begun = [jobs[0].begun_at()?, jobs[1].begun_at()?];
    ensure!(begun[0] >= before[0], "{} after {}", begun[0], before[0]);
    ensure!(begun[1] < before[1], "{} after {}", begun[1], before[1]);
    let occasion = format!("{reason:?}");
    report(&occasion, GANGS[0], &lost.to_string())?;
    report(
        &occasion,
        GANGS[1],
        &format!("at least {}", before[1] - begun[1]),
    )?;
    for name in GANGS {
        let status = t.workloads().get(name).await?.status.context("a status")?;
        ensure!(
            status.restarts.counted == 0,
            "{name}: {:?}",
            status.restarts
        );
    }
    let unasked = t.checkpoint_request(GANGS[1]).await;
    ensure!(unasked.is_err(), "{unasked:?}");
    Ok(())
}

/// Stops both gangs for this reason, one after the other, and waits until they train again.
async fn stopped(
    t: &Scenario<'_>,
    jobs: &[Job; 2],
    reason: CheckpointOccasion,
    stop: impl AsyncFn(&str) -> Result<()>,
) -> Result<()> {
    let mut before = [0; 2];
    for (index, name) in GANGS.into_iter().enumerate() {
        let total = async || {
            let status = t.workloads().get(name).await?.status.context("a status")?;
            anyhow::Ok(status.restarts.total)
        };
        // A drain for the other gang can have restarted it.
        t.running(name).await?;
        let restarts = total().await?;
        before[index] = at_stake(&jobs[index]).await?;
        let at = lockstep_containers::job::now()?;
        stop(name).await?;
        jobs[index].trains(t, at).await?;
        ensure!(total().await? <= restarts + 1, "{name} restarted twice");
    }
    continues(t, jobs, before, reason).await
}

/// A gang that needs all nodes preempts both gangs, and is deleted once it trains.
async fn preempted(t: &Scenario<'_>, real: &RealCluster, jobs: &[Job; 2]) -> Result<()> {
    let class = "requests-urgent";
    let create = ["create", "priorityclass", class, "--value", "1000"];
    t.cluster.kubectl(&create).await?;
    let mut before = [0; 2];
    for (step, job) in before.iter_mut().zip(jobs) {
        *step = at_stake(job).await?;
    }
    let urgent = Job::of(t, URGENT, real.members())?;
    let spec = json!({"priorityClassName": class});
    t.create(urgent.manifest(spec, json!({}))?).await?;
    urgent.trains(t, 0).await?;
    let freed = lockstep_containers::job::now()?;
    let delete = DeleteParams::default();
    t.workloads().delete(URGENT, &delete).await?;
    for job in jobs {
        job.trains(t, freed).await?;
    }
    continues(t, jobs, before, CheckpointOccasion::Preemption).await
}

#[tokio::test(flavor = "multi_thread")]
async fn gangs_save_before_a_preemption_a_drain_and_a_resize() -> Result<()> {
    on_nodes("requests", async |real, t| {
        let jobs = pair(t, &json!({})).await?;
        preempted(t, real, &jobs).await?;
        stopped(t, &jobs, CheckpointOccasion::Eviction, async |name| {
            let pods = t.running(name).await?;
            let drained = node(&pods[1]);
            let words = ["--ignore-daemonsets", "--delete-emptydir-data"];
            let drain = [&["drain", &*drained], &words[..]].concat();
            let outcome = t.cluster.kubectl(&drain).await;
            t.cluster.kubectl(&["uncordon", &drained]).await?;
            outcome.map(drop)
        })
        .await?;
        let grown = [Job::of(t, GANGS[0], 3)?, Job::of(t, GANGS[1], 3)?];
        stopped(t, &grown, CheckpointOccasion::Resize, async |name| {
            let name = format!("trainingworkload/{name}");
            let more = r#"[{"op": "replace", "path": "/spec/groups/0/replicas", "value": 3}]"#;
            let patch = ["patch", &*name, "-n", &*t.name, "--type=json", "-p", more];
            t.cluster.kubectl(&patch).await.map(drop)
        })
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_saves_before_its_deadline_ends_it() -> Result<()> {
    on_nodes("deadline", async |_: &RealCluster, t| {
        let jobs = pair(t, &json!({"activeDeadlineSeconds": 60})).await?;
        let mut lost = Vec::new();
        for (job, name) in jobs.iter().zip(GANGS) {
            t.workload(name, "to end", |w| {
                let phase = w.status.as_ref().and_then(|s| s.phase);
                ensure!(phase == Some(Phase::Failed), "phase {phase:?}");
                Ok(())
            })
            .await?;
            t.none_runs(name).await?;
            let saved = job.checkpoint().map_or(0, |(_, step)| step);
            // The step with the checkpoint comes after the last that the job has noted.
            lost.push(job.step()?.saturating_sub(saved));
            report("Deadline", name, &lost[lost.len() - 1].to_string())?;
        }
        saved_for(t, GANGS[0], CheckpointOccasion::Deadline, 2).await?;
        ensure!(lost[0] < 2 && lost[1] > lost[0], "{lost:?}");
        Ok(())
    })
    .await
}

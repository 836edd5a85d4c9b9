//! The first act: members are processes of this machine that train together over TCP.

use std::cell::Cell;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Resource, ResourceExt};
use lockstep_api::TrainingWorkload;
use lockstep_api::condition::{reasons, types};
use lockstep_api::names::annotations;
use lockstep_api::workload::Phase;
use lockstep_cluster::eventually;
use lockstep_cluster::scenario::{PATIENCE, Scenario, addresses, restarts, uids};
use lockstep_cluster::stage::{Stage, timings};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::training::{Checkpoint, Progress, Trainings};

/// Name of the training.
const GPT: &str = "gpt";
/// Minimum number of lost steps that makes a restart visible.
const BEYOND: u64 = 20;

/// Performs all steps, also after a step that fails.
pub async fn perform(stage: &mut Stage, t: &Scenario<'_>, trainings: &Trainings) {
    let show = Show {
        t,
        trainings,
        saved: Cell::new(None),
    };
    stage
        .step("four processes meet and train", async |s| {
            show.trains(s).await
        })
        .await;
    stage
        .step("a second training waits, and says why", async |s| {
            show.waits(s).await
        })
        .await;
    stage
        .step("kill -9 of a process: all restart in place", async |s| {
            show.killed(s).await
        })
        .await;
    stage
        .step(
            "a preempted training saves its work on SIGTERM",
            async |s| show.preempted(s).await,
        )
        .await;
    stage
        .step("it goes on from there when there is capacity", async |s| {
            show.goes_on(s).await
        })
        .await;
    stage
        .step("a wrong setting fails the training at once", async |s| {
            show.wrong(s).await
        })
        .await;
}

struct Show<'a> {
    t: &'a Scenario<'a>,
    trainings: &'a Trainings,
    /// Step at which the preempted training stopped.
    saved: Cell<Option<u64>>,
}

impl Show<'_> {
    async fn trains(&self, s: &Stage) -> Result<String> {
        s.say("   `gpt`: 4 members of 6 accelerators, one process each");
        let gpt = self.trainings.manifest(
            GPT,
            4,
            6,
            json!({}),
            json!({"priorityClassName": "research"}),
        )?;
        self.t.create(gpt).await?;
        let pods = self.t.running(GPT).await?;
        ensure!(pods.len() == 4, "{} pods", pods.len());
        let (progress, checkpoint) = self.beyond_a_checkpoint(&pods).await?;
        Ok(format!(
            "step {}, last checkpoint at {}",
            progress.step, checkpoint.step
        ))
    }

    async fn waits(&self, s: &Stage) -> Result<String> {
        s.say("   `bert`: 4 members of 4 accelerators, and each node has 2 left");
        let bert = self.trainings.manifest(
            "bert",
            4,
            4,
            json!({}),
            json!({"priorityClassName": "research"}),
        )?;
        self.t.create(bert).await?;
        let why = self
            .t
            .condition_is("bert", types::ADMITTED, false, reasons::UNSCHEDULABLE)
            .await?;
        let pods = self.t.pods("bert").await?.len();
        ensure!(pods == 0, "{pods} pods exist");
        self.t
            .workloads()
            .delete("bert", &DeleteParams::default())
            .await?;
        Ok(format!("no pod; {why}"))
    }

    async fn killed(&self, s: &Stage) -> Result<String> {
        let before = self.t.running(GPT).await?;
        let (progress, checkpoint) = self.beyond_a_checkpoint(&before).await?;
        let victim = before.get(2).context("member 2")?.name_any();
        let pid = self.t.nodes.pid(&self.t.name, &victim, "trainer").await?;
        s.say(&format!(
            "   step {}, checkpoint {}: kill -9 {pid}, process of {victim}",
            progress.step, checkpoint.step
        ));
        kill_process(Pid::from_raw(pid).context("a process id")?, Signal::KILL)?;

        let status = self.t.restarted(GPT, 1).await?;
        let after = self.t.running(GPT).await?;
        ensure!(uids(&before) == uids(&after), "pods were replaced");
        ensure!(addresses(&before) == addresses(&after), "addresses changed");
        ensure!(
            after.iter().all(|p| restarts(p) == 1),
            "some member did not restart exactly once"
        );
        let incident = status.history.first().context("history")?;
        let cause = &incident.cause;
        ensure!(
            cause.pod == victim && cause.exit_code == Some(137),
            "the cause is said to be {cause:?}"
        );
        let took = timings(incident)?;
        s.say(&format!(
            "   all 4 run after {took}, same UIDs and addresses"
        ));
        let begun_at = self.resumed(&after, checkpoint.step).await?;
        let passed = eventually("the step of the kill to be passed", PATIENCE, async || {
            let now = self.trainings.progress(after.first().context("a pod")?)?;
            ensure!(now.step > progress.step, "{now:?}");
            Ok(now.step)
        })
        .await?;
        Ok(format!(
            "same pods after {took}; step {} -> checkpoint {begun_at} -> step {passed}",
            progress.step
        ))
    }

    async fn preempted(&self, s: &Stage) -> Result<String> {
        let before = self.t.running(GPT).await?;
        let (progress, checkpoint) = self.beyond_a_checkpoint(&before).await?;
        let counted = self
            .t
            .workloads()
            .get(GPT)
            .await?
            .status
            .context("status")?
            .restarts
            .counted;
        // Lost work of a preemption is counted from here.
        let saved =
            json!({"metadata": {"annotations": {annotations::LAST_CHECKPOINT: checkpoint.time}}});
        let version = TrainingWorkload::api_version(&());
        self.t
            .patch("TrainingWorkload", &version, GPT, saved)
            .await?;
        s.say(&format!(
            "   `gpt` is at step {}; `urgent`, priority production, needs its capacity",
            progress.step
        ));
        let patch = json!({"priorityClassName": "production"});
        self.t
            .create(
                self.trainings
                    .manifest("urgent", 4, 6, json!({"STEPS": "120"}), patch)?,
            )
            .await?;

        let last = eventually("a checkpoint on SIGTERM", PATIENCE, async || {
            let last = self.trainings.checkpoint(GPT)?;
            ensure!(last.occasion == "stop", "{last:?}");
            Ok(last)
        })
        .await?;
        ensure!(
            last.step >= progress.step,
            "checkpoint {} of step {}",
            last.step,
            progress.step
        );
        self.saved.set(Some(last.step));
        let waiting = self
            .t
            .workload(GPT, "to wait again", |w| {
                let status = w.status.as_ref().context("status")?;
                ensure!(
                    status.preemptions == 1 && status.phase == Some(Phase::Pending),
                    "{:?}",
                    status.phase
                );
                ensure!(status.restarts.counted == counted, "a restart was charged");
                Ok(())
            })
            .await?;
        let why = waiting
            .status
            .and_then(|s| s.history.into_iter().next())
            .context("history")?
            .cause
            .message;
        s.say(&format!(
            "   `gpt` has saved step {} and waits: {why}",
            last.step
        ));
        let (_, message) = self.t.condition("urgent", types::COMPLETE).await?;
        Ok(format!(
            "saved at step {}, no restart charged; `urgent`: {message}",
            last.step
        ))
    }

    async fn goes_on(&self, s: &Stage) -> Result<String> {
        let pods = self.t.running(GPT).await?;
        s.say(&format!("   {} new pods of `gpt` run", pods.len()));
        let saved = self.saved.get().context("it was not preempted")?;
        let begun_at = self.resumed(&pods, saved).await?;
        ensure!(begun_at == saved, "began at {begun_at}, saved at {saved}");
        let moves = eventually("a step", PATIENCE, async || {
            let now = self.trainings.progress(pods.first().context("a pod")?)?;
            ensure!(now.step > begun_at, "{now:?}");
            Ok(now.step)
        })
        .await?;
        Ok(format!("began at step {begun_at}, now {moves}"))
    }

    async fn wrong(&self, s: &Stage) -> Result<String> {
        s.say("   `typo`: STEP_MILLIS=fast; the program ends with 2, for which the policy says FailWorkload");
        let policy = json!({"failurePolicy": {"rules": [
            {"name": "wrong-settings", "match": {"exitCodes": {"operator": "In", "values": [2]}}, "action": "FailWorkload"}]}});
        self.t
            .create(self.trainings.manifest(
                "typo",
                2,
                2,
                json!({"STEP_MILLIS": "fast"}),
                policy,
            )?)
            .await?;
        let (reason, message) = self.t.condition("typo", types::FAILED).await?;
        Ok(format!("{reason}: {message}"))
    }

    /// Waits until a checkpoint and later work exist.
    async fn beyond_a_checkpoint(&self, pods: &[Pod]) -> Result<(Progress, Checkpoint)> {
        let first = pods.first().context("a pod")?;
        eventually("work beyond a checkpoint", PATIENCE, async || {
            let (progress, checkpoint) = (
                self.trainings.progress(first)?,
                self.trainings.checkpoint(GPT)?,
            );
            ensure!(
                progress.step >= checkpoint.step + BEYOND,
                "{progress:?}, {checkpoint:?}"
            );
            Ok((progress, checkpoint))
        })
        .await
    }

    /// Waits until all members have resumed together, at this step or later.
    async fn resumed(&self, pods: &[Pod], step: u64) -> Result<u64> {
        eventually(
            "all members to go on from a checkpoint",
            PATIENCE,
            async || {
                let begun: Vec<u64> = pods
                    .iter()
                    .map(|p| Ok(self.trainings.progress(p)?.begun_at))
                    .collect::<Result<_>>()?;
                let first = *begun.first().context("a member")?;
                ensure!(
                    first >= step && begun.iter().all(|b| *b == first),
                    "{begun:?}, expected {step}"
                );
                Ok(first)
            },
        )
        .await
    }
}

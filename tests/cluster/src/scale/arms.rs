//! The arms, one after the other on the same nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use lockstep_api::names;
use lockstep_api::workload::{Group, Phase, Phases, TrainingWorkloadStatus};
use lockstep_cluster::audit::Follow;
use lockstep_cluster::cluster::Manager;
use lockstep_cluster::manifests::gang;
use lockstep_cluster::scenario::{Scenario, uids};
use lockstep_cluster::{eventually, install};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Wanted;
use crate::calls::Calls;
use crate::figures::{Arm, HEAD, Round};
use crate::machine::{load, taken};

/// Beyond which an arm has not ended.
const PATIENCE: Duration = Duration::from_mins(15);
/// Exit code on which the gang is recreated.
const ANEW: i32 = 42;
/// What the slow API server does: every request waits, and one in ten is refused.
const SLOW: &str = r#"{"delayMillis": 200, "refuseEvery": 10, "retryAfterSeconds": 1}"#;
/// Time for what trails an arm, so that it is counted there and not in the next.
const TRAIL: Duration = Duration::from_secs(3);

/// The benchmark under way.
pub struct Bench<'t> {
    t: &'t Scenario<'t>,
    members: i32,
    rounds: usize,
    /// Rounds of the other restarts.
    few: usize,
    manager: Manager,
    log: Follow,
    arms: Vec<Arm>,
}

impl<'t> Bench<'t> {
    pub fn new(t: &'t Scenario<'t>, wanted: &Wanted, manager: Manager) -> Result<Self> {
        Ok(Self {
            t,
            members: wanted.nodes,
            rounds: wanted.rounds,
            few: wanted.rounds.min(3),
            manager,
            log: t.cluster.audit.follow()?,
            arms: Vec::new(),
        })
    }

    /// All arms; then the table.
    pub async fn run(mut self) -> Result<()> {
        let term = self.term().await?;
        self.create("create", "sup", supervised()).await?;
        for _ in 0..self.rounds {
            self.supervised("supervised restart", "sup").await?;
        }
        for _ in 0..self.rounds {
            self.recreate("RecreateGang", "sup").await?;
        }
        self.slowly(true)?;
        for _ in 0..self.few {
            self.supervised("supervised restart, slow server", "sup")
                .await?;
        }
        for _ in 0..self.few {
            self.recreate("RecreateGang, slow server", "sup").await?;
        }
        self.slowly(false)?;
        self.delete("delete", "sup").await?;
        self.create("create, container tier", "plain", plain())
            .await?;
        for _ in 0..self.few {
            self.in_place("restart in place, container tier", "plain")
                .await?;
        }
        self.slowly(true)?;
        for _ in 0..self.few {
            self.in_place("restart in place, container tier, slow server", "plain")
                .await?;
        }
        self.slowly(false)?;
        self.delete("delete, container tier", "plain").await?;
        self.preempt().await?;
        ensure!(
            self.term().await? == term,
            "leadership was lost in the course of it"
        );
        self.failover().await?;
        self.print()
    }

    /// How often the lease has changed hands.
    async fn term(&self) -> Result<i32> {
        let (namespace, _) = install::MANAGER;
        let leases: Api<Lease> = Api::namespaced(self.t.client.clone(), namespace);
        let spec = leases.get(names::LEASE).await?.spec.context("lease")?;
        Ok(spec.lease_transitions.unwrap_or_default())
    }

    /// Makes the API server slow, or lets it be as it is.
    fn slowly(&self, slow: bool) -> Result<()> {
        let file = self.t.cluster.folder().join("plane").join("slow.json");
        if slow {
            std::fs::write(file, SLOW)?;
        } else {
            std::fs::remove_file(file)?;
        }
        Ok(())
    }

    /// Takes down what a restart of a workload has shown, beside the manager's account of it.
    async fn note_restart(
        &mut self,
        arm: &str,
        took: Duration,
        kept: usize,
        workload: &str,
    ) -> Result<()> {
        let status = self.t.workloads().get(workload).await?.status;
        let last = status.and_then(|s| s.history.into_iter().next());
        let phases = last.context("no restart in the history")?.phases;
        self.note(arm, took, kept, Some(phases)).await
    }

    /// Takes down what an arm has shown.
    async fn note(
        &mut self,
        name: &str,
        took: Duration,
        kept: usize,
        phases: Option<Phases>,
    ) -> Result<()> {
        tokio::time::sleep(TRAIL).await;
        let round = Round {
            took,
            calls: Calls::since(&mut self.log)?,
            kept,
            phases,
        };
        let manager = taken(self.manager.process.id())?;
        println!(
            "{name}: {:.2} s; manager {:.0} MB (most {:.0}), {:.1} s of CPU so far; load {}",
            took.as_secs_f64(),
            manager.resident,
            manager.most_resident,
            manager.cpu,
            load()?
        );
        for line in round.calls.lines() {
            println!("    {line}");
        }
        match self.arms.last_mut().filter(|arm| arm.name == name) {
            Some(arm) => arm.rounds.push(round),
            None => self.arms.push(Arm {
                name: name.to_owned(),
                rounds: vec![round],
            }),
        }
        Ok(())
    }

    /// Waits for a status.
    async fn until(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&TrainingWorkloadStatus) -> bool,
    ) -> Result<TrainingWorkloadStatus> {
        eventually(&format!("{name} {what}"), PATIENCE, async || {
            let status = self.t.workloads().get(name).await?.status;
            let status = status.context("no status yet")?;
            ensure!(
                holds(&status),
                "{:?} {} {:?}",
                status.phase,
                status.ready,
                status.message
            );
            Ok(status)
        })
        .await
    }

    async fn running(&self, name: &str) -> Result<TrainingWorkloadStatus> {
        let all = format!("{0}/{0}", self.size_of(name).await?);
        self.until(name, "to run", |s| is_running(s) && s.ready == all)
            .await
    }

    async fn size_of(&self, name: &str) -> Result<i32> {
        let groups = self.t.workloads().get(name).await?.spec.groups;
        Ok(groups.iter().map(Group::members).sum())
    }

    async fn uids(&self, name: &str) -> Result<BTreeSet<String>> {
        Ok(uids(&self.t.pods(name).await?).into_iter().collect())
    }

    /// Ends the training process of one member.
    async fn fail(&self, name: &str, code: i32) -> Result<()> {
        let one = ListParams::default()
            .labels(&format!("{}={name}", names::labels::WORKLOAD))
            .limit(1);
        let pods = self.t.all_pods().list(&one).await?.items;
        let pod = pods.first().context("a pod")?.name_any();
        self.t.nodes.exit(&self.t.name, &pod, "trainer", code).await
    }

    async fn create(&mut self, arm: &str, name: &str, policy: Value) -> Result<()> {
        let begun = Instant::now();
        self.t.create(gang(name, self.members, 8, policy)).await?;
        self.running(name).await?;
        self.note(arm, begun.elapsed(), 0, None).await
    }

    async fn supervised(&mut self, arm: &str, name: &str) -> Result<()> {
        let before = self.uids(name).await?;
        let status = self.running(name).await?;
        let (next, restarts) = (status.attempt + 1, status.restarts.total);
        let begun = Instant::now();
        self.fail(name, 1).await?;
        let all = usize::try_from(self.members)?;
        eventually("all processes to run anew", PATIENCE, async || {
            let by_attempt = self.t.nodes.training().await?;
            let here = by_attempt.get(&next).copied().unwrap_or(0);
            ensure!(here == all, "{by_attempt:?} of {all}");
            Ok(())
        })
        .await?;
        let took = begun.elapsed();
        self.until(name, "to say so", |s| {
            is_running(s) && s.restarts.total > restarts
        })
        .await?;
        let kept = self.uids(name).await?.intersection(&before).count();
        ensure!(kept == all, "{kept} of {all} pods were kept");
        self.note_restart(arm, took, kept, name).await
    }

    async fn in_place(&mut self, arm: &str, name: &str) -> Result<()> {
        let before = self.uids(name).await?;
        let took = self.restart(name, 1).await?;
        let kept = self.uids(name).await?.intersection(&before).count();
        ensure!(kept == before.len(), "{kept} of {} kept", before.len());
        self.note_restart(arm, took, kept, name).await
    }

    async fn recreate(&mut self, arm: &str, name: &str) -> Result<()> {
        let before = self.uids(name).await?;
        let took = self.restart(name, ANEW).await?;
        let kept = self.uids(name).await?.intersection(&before).count();
        ensure!(kept == 0, "{kept} pods were kept");
        self.note_restart(arm, took, kept, name).await
    }

    /// A failure, until all members are ready again.
    async fn restart(&self, name: &str, code: i32) -> Result<Duration> {
        let restarts = self.running(name).await?.restarts.total;
        let all = format!("{0}/{0}", self.size_of(name).await?);
        let begun = Instant::now();
        self.fail(name, code).await?;
        self.until(name, "to have restarted", |s| {
            is_running(s) && s.restarts.total > restarts && s.ready == all
        })
        .await?;
        Ok(begun.elapsed())
    }

    async fn delete(&mut self, arm: &str, name: &str) -> Result<()> {
        let begun = Instant::now();
        self.gone(name).await?;
        self.note(arm, begun.elapsed(), 0, None).await
    }

    /// Deletes a workload, and waits until nothing is left.
    async fn gone(&self, name: &str) -> Result<()> {
        let workloads = self.t.workloads();
        workloads.delete(name, &DeleteParams::default()).await?;
        let one = ListParams::default()
            .labels(&format!("{}={name}", names::labels::WORKLOAD))
            .limit(1);
        eventually("no pod to be left", PATIENCE, async || {
            let left = self.t.all_pods().list(&one).await?.items.len();
            ensure!(left == 0, "pods are left");
            Ok(())
        })
        .await
    }

    /// Half of the cluster takes the place of the other half.
    async fn preempt(&mut self) -> Result<()> {
        let half = self.members / 2;
        let class = |class: &str| json!({"priorityClassName": class});
        for name in ["low-a", "low-b"] {
            self.t.create(gang(name, half, 8, class("low"))).await?;
        }
        for name in ["low-a", "low-b"] {
            self.running(name).await?;
        }
        Calls::since(&mut self.log)?;
        let begun = Instant::now();
        self.t.create(gang("boss", half, 8, class("high"))).await?;
        self.running("boss").await?;
        self.note("preemption by half the cluster", begun.elapsed(), 0, None)
            .await?;
        for name in ["boss", "low-a", "low-b"] {
            self.gone(name).await?;
        }
        Ok(())
    }

    /// Another process takes over in the middle of a restart.
    async fn failover(&mut self) -> Result<()> {
        self.t
            .create(gang("last", self.members, 8, supervised()))
            .await?;
        self.running("last").await?;
        let begun = Instant::now();
        let second = self.t.cluster.start_manager("second").await?;
        println!(
            "cold start of a follower, until its index is complete: {:.2} s",
            begun.elapsed().as_secs_f64()
        );
        let mut first = std::mem::replace(&mut self.manager, second);
        Calls::since(&mut self.log)?;
        first.process.kill()?;
        self.supervised("supervised restart, its manager killed before", "last")
            .await
    }

    fn print(&self) -> Result<()> {
        let median = |name: &str| {
            let arm = self.arms.iter().find(|a| a.name == name);
            arm.map(Arm::median).context("an arm")
        };
        let (supervised, anew) = (median("supervised restart")?, median("RecreateGang")?);
        println!("\n{HEAD}");
        for arm in &self.arms {
            println!("{}", arm.row(anew));
        }
        let mut arms = self.arms.iter();
        let rounds = arms.find(|a| a.name == "supervised restart");
        let rounds = &rounds.context("an arm")?.rounds;
        let nodes = usize::try_from(self.members)?;
        for round in rounds {
            let summaries = round.calls.of("manager", "patch trainingworkloads/status");
            let writes = round.calls.by("manager") + round.calls.by("agents");
            println!(
                "writes of a supervised restart: {writes}, {summaries} of them summaries, on {nodes} nodes; by kubelets {}",
                round.calls.by("kubelets")
            );
        }
        println!("recreated / supervised: {:.1}", anew / supervised);
        Ok(())
    }
}

fn is_running(status: &TrainingWorkloadStatus) -> bool {
    status.phase == Some(Phase::Running) && status.domains.iter().all(|d| d.incident.is_none())
}

/// A gang whose training processes restart inside their containers.
fn supervised() -> Value {
    json!({"failurePolicy": {"limits": {"maxRestarts": 100}, "rules": [anew()],
        "inPlace": {"withoutSupervisor": "Deny", "maxTries": 100}}})
}

/// One whose containers restart.
fn plain() -> Value {
    json!({"failurePolicy": {"limits": {"maxRestarts": 100}, "rules": [anew()],
        "inPlace": {"withoutSupervisor": "Allow", "supervisor": "Never", "maxTries": 100}}})
}

fn anew() -> Value {
    json!({"name": "anew", "action": "RecreateGang",
        "match": {"exitCodes": {"operator": "In", "values": [ANEW]}}})
}

//! The arms of the benchmark, in turn on the same nodes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use lockstep_api::names;
use lockstep_api::workload::{Phase, TrainingWorkloadStatus};
use lockstep_cluster::eventually;
use lockstep_cluster::manifests::gang;
use lockstep_cluster::proxy::{Fault, Proxy};
use lockstep_cluster::scenario::{Scenario, uids};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Wanted;
use crate::figures::Round;
use crate::record::Record;

/// Limit of an arm.
const PATIENCE: Duration = Duration::from_mins(15);
/// Exit code for which the gang is recreated.
const ANEW: i32 = 42;
/// The tier with container restarts by the kubelet without back-off.
const RESTART_ALL: &str = "restart-all";
/// Delay of every request of the slow API server.
const SLOW: Duration = Duration::from_millis(200);
/// One in this number of requests for pods and their events is refused by the slow API server, with
/// this Retry-After.
const REFUSED: (usize, u32) = (10, 1);

/// The arms on nodes of one kind.
pub struct Bench<'t> {
    pub(crate) t: &'t Scenario<'t>,
    pub(crate) members: i32,
    rounds: usize,
    /// Rounds of the other restarts.
    pub(crate) few: usize,
    parts: &'t BTreeSet<String>,
    pub(crate) record: &'t mut Record,
    proxy: Option<&'t Proxy>,
}

impl<'t> Bench<'t> {
    pub fn new(
        t: &'t Scenario<'t>,
        wanted: &'t Wanted,
        record: &'t mut Record,
        proxy: Option<&'t Proxy>,
    ) -> Self {
        Self {
            t,
            members: wanted.nodes,
            rounds: wanted.rounds,
            few: wanted.rounds.min(3),
            parts: &wanted.parts,
            record,
            proxy,
        }
    }

    /// The arms on nodes with all features.
    pub async fn run(mut self) -> Result<()> {
        self.nodes_ready().await?;
        let term = self.term().await?;
        if self.plays("restarts") {
            self.restarts().await?;
        }
        if self.plays(RESTART_ALL) {
            self.in_place_rounds(RESTART_ALL).await?;
        }
        if self.plays("preemption") {
            self.preemption("preemption by half the cluster").await?;
        }
        if self.plays("backends") {
            self.backends().await?;
        }
        if self.plays(crate::HEARTBEATS) {
            self.heartbeats().await?;
        }
        ensure!(
            self.term().await? == term,
            "leadership was lost in the course of it"
        );
        if self.plays("failover") {
            self.failover().await?;
        }
        Ok(())
    }

    fn plays(&self, part: &str) -> bool {
        self.parts.contains(part)
    }

    /// A gang with supervisors from its start to its end.
    async fn restarts(&mut self) -> Result<()> {
        self.create("create", "sup", supervised()).await?;
        for _ in 0..self.rounds {
            self.supervised("supervised restart", "sup").await?;
        }
        for _ in 0..self.rounds {
            self.recreate("RecreateGang", "sup").await?;
        }
        if self.plays("slow") {
            self.slow_server().await
        } else {
            self.delete("delete", "sup").await
        }
    }

    /// Speeds of the API server, and the suffix of the arms' names for each.
    fn servers(&self) -> impl Iterator<Item = (bool, &'static str)> + use<> {
        let slow = self.plays("slow").then_some((true, ", slow server"));
        [(false, "")].into_iter().chain(slow)
    }

    /// Restarts, an end and a start with a slow API server.
    async fn slow_server(&mut self) -> Result<()> {
        self.slowly(true)?;
        for _ in 0..self.few {
            self.supervised("supervised restart, slow server", "sup")
                .await?;
        }
        for _ in 0..self.few {
            self.recreate("RecreateGang, slow server", "sup").await?;
        }
        self.delete("delete, slow server", "sup").await?;
        self.create("create, slow server", "late", supervised())
            .await?;
        self.slowly(false)?;
        self.delete("delete", "late").await
    }

    /// Waits until every node accepts pods, so that no arm measures the arrival of nodes.
    async fn nodes_ready(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.t.client.clone());
        eventually("all nodes to accept pods", PATIENCE, async || {
            let all = nodes.list(&ListParams::default()).await?;
            let own = all
                .iter()
                .filter(|n| n.name_any().starts_with(&self.t.name));
            let ready = own.filter(|n| accepts_pods(n)).count();
            ensure!(ready >= usize::try_from(self.members)?, "{ready} do");
            Ok(())
        })
        .await
    }

    /// The arms of a tier that restarts containers, on nodes with only its features.
    pub async fn tier(mut self, tier: &str) -> Result<()> {
        self.nodes_ready().await?;
        let term = self.term().await?;
        self.in_place_rounds(tier).await?;
        ensure!(
            self.term().await? == term,
            "leadership was lost in the course of it"
        );
        Ok(())
    }

    /// Creates a gang without supervisors, restarts it in place, and deletes it. If the kubelet
    /// delays repeated restarts of a container, each round has new pods, so that no time contains
    /// the back-off and no member is replaced because of it.
    async fn in_place_rounds(&mut self, tier: &str) -> Result<()> {
        self.create(&format!("create, {tier}"), "plain", plain())
            .await?;
        let backs_off = tier != RESTART_ALL;
        for (slow, server) in self.servers() {
            let arm = format!("restart in place, {tier}{server}");
            for round in 0..self.few {
                if backs_off && (slow || round > 0) {
                    self.restart("plain", ANEW).await?;
                    self.record.skip().await?;
                }
                self.slowly(slow)?;
                self.in_place(&arm, "plain").await?;
                self.slowly(false)?;
            }
        }
        self.gone("plain").await
    }

    /// Number of changes of the lease's holder.
    async fn term(&self) -> Result<i32> {
        Ok(self.t.lease().await?.lease_transitions.unwrap_or_default())
    }

    /// Makes the API server slow or fast.
    fn slowly(&self, slow: bool) -> Result<()> {
        let Some(proxy) = self.proxy else {
            ensure!(!slow, "no proxy makes the API server slow");
            return Ok(());
        };
        if !slow {
            proxy.clear();
            return Ok(());
        }
        let (every, retry_after) = REFUSED;
        let requests = AtomicUsize::new(0);
        proxy.inject(move |call| {
            let is_refusable = call.resource.starts_with("pods") || call.resource == "events";
            if is_refusable
                && requests
                    .fetch_add(1, Ordering::Relaxed)
                    .is_multiple_of(every)
            {
                Fault::Refuse(retry_after)
            } else {
                Fault::Delay(SLOW)
            }
        });
        Ok(())
    }

    /// Records the results of a workload's restart, including the manager's phases.
    async fn note_restart(
        &mut self,
        arm: &str,
        took: Duration,
        kept: usize,
        workload: &str,
    ) -> Result<()> {
        let workload = self.t.workloads().get(workload).await?;
        let uid = workload.uid().unwrap_or_default();
        let status = workload.status.context("a status")?;
        let delivered = self.t.nodes.deliveries(&uid, status.attempt).await?;
        let last = status.history.into_iter().next();
        let round = Round {
            took,
            kept,
            phases: Some(last.context("no restart in the history")?.phases),
            delivered,
            ..Round::default()
        };
        self.record.note(arm, round).await
    }

    /// Records the duration of an arm without restart.
    pub(crate) async fn note(&mut self, arm: &str, took: Duration) -> Result<()> {
        let round = Round {
            took,
            ..Round::default()
        };
        self.record.note(arm, round).await
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

    pub(crate) async fn running(&self, name: &str) -> Result<TrainingWorkloadStatus> {
        let all = format!("{0}/{0}", self.size_of(name).await?);
        self.until(name, "to run", |s| is_running(s) && s.ready == all)
            .await
    }

    async fn size_of(&self, name: &str) -> Result<i32> {
        Ok(self.t.workloads().get(name).await?.spec.members())
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

    pub(crate) async fn create(&mut self, arm: &str, name: &str, policy: Value) -> Result<()> {
        let begun = Instant::now();
        self.t.create(gang(name, self.members, 8, policy)).await?;
        self.running(name).await?;
        self.note(arm, begun.elapsed()).await
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

    /// Time from a failure until all members are ready again.
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
        self.note(arm, begun.elapsed()).await
    }

    /// Deletes a workload, and waits until all its objects are gone.
    pub(crate) async fn gone(&self, name: &str) -> Result<()> {
        self.end(name).await?;
        self.ended(name).await
    }

    pub(crate) async fn end(&self, name: &str) -> Result<()> {
        let workloads = self.t.workloads();
        workloads.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until all objects of a deleted workload are gone.
    pub(crate) async fn ended(&self, name: &str) -> Result<()> {
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

    /// Half of the cluster preempts the other half, also with a slow API server if that is
    /// selected.
    async fn preemption(&mut self, arm: &str) -> Result<()> {
        for (slow, server) in self.servers() {
            for _ in 0..self.few {
                self.preempt(&format!("{arm}{server}"), slow).await?;
            }
        }
        Ok(())
    }

    async fn preempt(&mut self, arm: &str, slow: bool) -> Result<()> {
        let half = self.members / 2;
        let class = |class: &str| json!({"priorityClassName": class});
        for name in ["low-a", "low-b"] {
            self.t.create(gang(name, half, 8, class("low"))).await?;
        }
        for name in ["low-a", "low-b"] {
            self.running(name).await?;
        }
        self.record.skip().await?;
        self.slowly(slow)?;
        let begun = Instant::now();
        self.t.create(gang("boss", half, 8, class("high"))).await?;
        self.running("boss").await?;
        self.note(arm, begun.elapsed()).await?;
        self.slowly(false)?;
        for name in ["low-a", "low-b", "boss"] {
            self.end(name).await?;
        }
        for name in ["low-a", "low-b", "boss"] {
            self.ended(name).await?;
        }
        Ok(())
    }

    /// Another process takes over during a restart.
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
        let mut first = std::mem::replace(&mut self.record.manager, second);
        self.record.skip().await?;
        first.process.kill()?;
        self.supervised("supervised restart, its manager killed before", "last")
            .await?;
        self.gone("last").await
    }
}

fn is_running(status: &TrainingWorkloadStatus) -> bool {
    status.phase == Some(Phase::Running) && status.domains.iter().all(|d| !d.is_restarting())
}

/// A gang whose training processes restart inside their containers.
pub(crate) fn supervised() -> Value {
    json!({"failurePolicy": {"limits": {"maxRestarts": 100}, "rules": [anew()],
        "inPlace": {"withoutSupervisor": "Deny", "maxTries": 100}}})
}

/// A gang whose containers restart.
fn plain() -> Value {
    json!({"failurePolicy": {"limits": {"maxRestarts": 100}, "rules": [anew()],
        "inPlace": {"withoutSupervisor": "Allow", "supervisor": "Never", "maxTries": 100}}})
}

fn anew() -> Value {
    json!({"name": "anew", "action": "RecreateGang",
        "match": {"exitCodes": {"operator": "In", "values": [ANEW]}}})
}

/// True if the node is Ready and has no taint that keeps pods away.
fn accepts_pods(node: &Node) -> bool {
    let status = node.status.as_ref();
    let mut conditions = status
        .into_iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let mut taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    conditions.any(|c| c.type_ == "Ready" && c.status == "True")
        && !taints.any(|t| t.effect != "PreferNoSchedule")
}

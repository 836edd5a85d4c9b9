//! Fills the cluster with gangs, failures and signals.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use lockstep_api::scheduling::PodGroupStatus;
use lockstep_api::workload::{Phase, TrainingWorkloadStatus};
use lockstep_api::{PodGroup, TrainingWorkload, names};
use lockstep_cluster::manifests::POOL as POOL_LABEL;
use lockstep_cluster::nodes::Nodes;
use lockstep_cluster::scenario::hostname;
use lockstep_cluster::{Cluster, eventually};
use serde_json::json;
use tokio::time::interval;

use crate::gangs::{
    self, CLASSES, FAILING, NAMESPACES, PROBE_NODES, PROBE_POOL, WAITING, Workload,
};
use crate::{PATIENCE, REPORT, Size};

/// Concurrent requests.
const AT_ONCE: usize = 32;
const POLL: Duration = Duration::from_secs(1);
/// Percentage of nodes with running gangs.
const BUSY: usize = 93;
/// Exit codes of a member of the largest gang, one after the other, on the same node.
const REPEATED: [i32; 4] = [139, 1, 137, 139];
/// Exit codes of members of the next gangs. 2 fails its workload.
const FAILURES: [i32; FAILING - 1] = [1, 137, 134, 1, 255, 2];

/// Parts of the cluster.
pub struct Filling<'c> {
    pub cluster: &'c Cluster,
    pub client: Client,
    pub nodes: &'c Nodes,
    pub size: Size,
}

impl Filling<'_> {
    pub async fn run(&self) -> Result<()> {
        self.until_untainted().await?;
        for (class, value) in CLASSES {
            let class = ["create", "priorityclass", class, "--value", value];
            self.cluster.kubectl(&class).await?;
        }
        for namespace in NAMESPACES {
            let namespace = ["create", "namespace", namespace];
            self.cluster.kubectl(&namespace).await?;
        }
        let (nodes, probed) = self.nodes.names().split_at(self.size.nodes - PROBE_NODES);
        let label = format!("{POOL_LABEL}={PROBE_POOL}");
        let probed = probed.iter().map(String::as_str);
        let label: Vec<&str> = ["label", "--overwrite", "node"]
            .into_iter()
            .chain(probed)
            .chain([&*label])
            .collect();
        self.cluster.kubectl(&label).await?;
        // The others are the waiting gangs and the probe.
        let number = self.size.gangs - WAITING - 1;
        let running = gangs::running(number, nodes.len() * BUSY / 100);
        self.create(running.iter()).await?;
        self.until_running(running.len()).await?;
        self.fail(&running).await?;
        // The reservation keeps small gangs from free nodes.
        self.create([&gangs::reserving(nodes.len())]).await?;
        self.until("a reservation", |gang| gang.reservation.is_some())
            .await?;
        let waiting = gangs::queued(nodes.len());
        let last = [gangs::preempting(nodes.len()), gangs::probe()];
        self.create(waiting.iter().chain(&last)).await?;
        self.until("a preemption", |gang| gang.preemption.is_some())
            .await?;
        self.signals(nodes).await
    }

    async fn create(&self, all: impl IntoIterator<Item = &Workload>) -> Result<()> {
        stream::iter(all)
            .map(|workload| async move {
                let api =
                    Api::<TrainingWorkload>::namespaced(self.client.clone(), workload.namespace);
                let object = serde_json::from_value(workload.manifest.clone())?;
                let created = api.create(&PostParams::default(), &object).await;
                created.with_context(|| workload.name.clone())?;
                anyhow::Ok(())
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// Waits until no new node has the taint `not-ready`: gangs would preempt each other for the rest.
    async fn until_untainted(&self) -> Result<()> {
        let nodes = Api::<Node>::all(self.client.clone());
        let mut polls = interval(REPORT);
        for _ in 0..PATIENCE.as_secs() / REPORT.as_secs() {
            polls.tick().await;
            let all = nodes.list(&ListParams::default()).await?;
            let taints = |node: &&Node| node.spec.iter().any(|s| s.taints.is_some());
            let tainted = all.iter().filter(taints).count();
            if tainted == 0 {
                return Ok(());
            }
            println!("{tainted} of {} nodes have taints", self.size.nodes);
        }
        anyhow::bail!("nodes have taints after {PATIENCE:?}")
    }

    /// Waits until this number of workloads run, and reports how many do.
    async fn until_running(&self, number: usize) -> Result<()> {
        let workloads = Api::<TrainingWorkload>::all(self.client.clone());
        let mut polls = interval(POLL);
        for poll in 0..PATIENCE.as_secs() {
            polls.tick().await;
            let all = workloads.list(&ListParams::default()).await?;
            let running = all.iter().filter(|w| is_running(w.status.as_ref())).count();
            if running == number {
                return Ok(());
            }
            if poll % REPORT.as_secs() == 0 {
                println!("{running} of {number} gangs run");
            }
        }
        anyhow::bail!("not all of {number} gangs run within {PATIENCE:?}")
    }

    /// Waits until the status of a gang passes.
    async fn until(&self, what: &str, passes: impl Fn(&PodGroupStatus) -> bool) -> Result<()> {
        let gangs = Api::<PodGroup>::all(self.client.clone());
        eventually(what, PATIENCE, async || {
            let all = gangs.list(&ListParams::default()).await?;
            let mut statuses = all.iter().filter_map(|gang| gang.status.as_ref());
            ensure!(statuses.any(&passes), "no gang has it");
            Ok(())
        })
        .await
    }

    /// Members end: of the largest gang several times on one node, of the next gangs once.
    async fn fail(&self, running: &[Workload]) -> Result<()> {
        let (largest, next) = running.split_first().context("a gang")?;
        for (times, code) in (1..).zip(REPEATED) {
            self.exit(largest, code).await?;
            self.restarted(largest, times).await?;
        }
        for (workload, code) in next.iter().zip(FAILURES) {
            self.exit(workload, code).await?;
        }
        println!("{} members have failed", REPEATED.len() + FAILURES.len());
        Ok(())
    }

    /// Ends the first member of a workload.
    async fn exit(&self, workload: &Workload, code: i32) -> Result<()> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), workload.namespace);
        let own = format!("{}={}", names::labels::WORKLOAD, workload.name);
        let mut own = pods.list(&ListParams::default().labels(&own)).await?.items;
        own.sort_by_key(hostname);
        let pod = own.first().context("a pod")?.name_any();
        let namespace = workload.namespace;
        // The process may begin after the status reports the restart.
        let exited = eventually("a process to end", PATIENCE, async || {
            self.nodes.exit(namespace, &pod, "trainer", code).await
        });
        exited.await
    }

    async fn restarted(&self, workload: &Workload, times: i64) -> Result<()> {
        let all = Api::<TrainingWorkload>::namespaced(self.client.clone(), workload.namespace);
        eventually("a restart", PATIENCE, async || {
            let status = all.get(&workload.name).await?.status;
            let status = status.context("no status")?;
            let restarts = status.restarts.total;
            ensure!(
                restarts == times && is_running(Some(&status)),
                "{restarts} restarts"
            );
            Ok(())
        })
        .await
    }

    /// One busy node is cordoned, and one has a signal.
    async fn signals(&self, nodes: &[String]) -> Result<()> {
        let (cordoned, suspect) = (&nodes[nodes.len() / 3], &nodes[nodes.len() / 2]);
        self.cluster.kubectl(&["cordon", cordoned]).await?;
        let condition = json!({"type": "XIDErrors", "status": "True", "reason": "XIDErrorsFound",
            "message": "GPU 3: XID 79, the device has fallen off the bus"});
        let patch = json!({"status": {"conditions": [condition]}}).to_string();
        let patch = [
            "patch",
            "node",
            suspect,
            "--subresource=status",
            "-p",
            &patch,
        ];
        self.cluster.kubectl(&patch).await.map(drop)
    }
}

/// True if all members run and no restart is in progress.
fn is_running(status: Option<&TrainingWorkloadStatus>) -> bool {
    status.is_some_and(|status| {
        status.phase == Some(Phase::Running) && status.domains.iter().all(|d| !d.is_restarting())
    })
}

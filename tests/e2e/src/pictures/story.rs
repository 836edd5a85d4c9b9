//! A small cluster for some minutes: gangs wait, demand nodes of an autoscaler that has none, run, fail,
//! restart, are preempted, save on request and complete, and three need help.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use lockstep_api::TrainingWorkload;
use lockstep_api::condition::{is_true, types};
use lockstep_api::names::labels;
use lockstep_api::workload::Phase;
use lockstep_cluster::manifests::{gang, group, merge};
use lockstep_cluster::nodes::Nodes;
use lockstep_cluster::scenario::{PATIENCE, hostname};
use lockstep_cluster::{Cluster, eventually};
use serde_json::{Value, json};

use crate::pause;

/// Nodes of eight accelerators.
pub const NODES: i32 = 8;
/// Namespace and name of the workload on the dashboard of a workload.
pub const SHOWN: (&str, &str) = ("research", "sweep");
/// Namespaces of the cluster.
const TEAMS: [&str; 3] = ["language", "research", "vision"];

/// Spec of a gang that saves on request.
fn saving(members: i32) -> Value {
    let mut workers = group("workers", members, 8);
    workers["template"]["spec"]["containers"][0]["env"] = json!([
        {"name": "HOLLOW_STEP_MILLIS", "value": "500"},
        {"name": "HOLLOW_ON_CHECKPOINT", "value": "save"},
        {"name": "HOLLOW_CHECKPOINT_MILLIS", "value": "2000"},
    ]);
    json!({"groups": [workers], "checkpoint": {"onRequest": {"timeoutSeconds": 20}}})
}

/// The cluster of the story.
pub struct Story<'a> {
    cluster: &'a Cluster,
    client: Client,
    nodes: &'a Nodes,
}

impl<'a> Story<'a> {
    /// Creates the namespaces.
    pub async fn new(cluster: &'a Cluster, nodes: &'a Nodes) -> Result<Self> {
        let client = cluster.client().await?;
        for team in TEAMS {
            let mut namespace = Namespace::default();
            namespace.metadata.name = Some(team.into());
            Api::all(client.clone())
                .create(&PostParams::default(), &namespace)
                .await?;
        }
        Ok(Self {
            cluster,
            client,
            nodes,
        })
    }

    /// Plays the story, in about seven minutes.
    pub async fn play(&self) -> Result<()> {
        self.fill().await?;
        self.first_failures().await?;
        self.preempt().await?;
        self.somebody_is_needed().await?;
        self.complete().await?;
        self.more_failures().await
    }

    /// All capacity is in use, and one more gang waits.
    async fn fill(&self) -> Result<()> {
        println!("0: gangs take the cluster");
        self.create("language", "llama", "middle", 4, json!({}))
            .await?;
        self.create("vision", "resnet", "low", 2, json!({})).await?;
        pause(10).await;
        self.create("research", "sweep", "low", 2, json!({}))
            .await?;
        for (team, name) in [("language", "llama"), ("vision", "resnet"), SHOWN] {
            self.running(team, name).await?;
        }
        pause(20).await;
        self.create("research", "ablation", "low", 2, json!({}))
            .await?;
        pause(15).await;
        Ok(())
    }

    async fn first_failures(&self) -> Result<()> {
        println!("1: members fail");
        self.fail("language", "llama", 2, 1).await?;
        pause(20).await;
        self.fail("research", "sweep", 1, 137).await?;
        pause(15).await;
        self.checkpoint("language", "llama").await?;
        self.checkpoint("research", "sweep").await?;
        pause(10).await;
        Ok(())
    }

    /// The gang with the most recent checkpoint loses least.
    async fn preempt(&self) -> Result<()> {
        println!("2: a more important gang comes");
        self.create("vision", "vit", "high", 2, json!({})).await?;
        self.running("vision", "vit").await?;
        pause(25).await;
        self.fail("vision", "vit", 0, 1).await?;
        pause(20).await;
        self.end("vision", "vit").await?;
        pause(10).await;
        Ok(())
    }

    async fn somebody_is_needed(&self) -> Result<()> {
        println!("3: one needs a change, one is suspended, one fails for good");
        self.create("vision", "typo", "hihg", 2, json!({})).await?;
        self.create("language", "later", "low", 4, json!({"suspend": true}))
            .await?;
        pause(10).await;
        let rule = json!({"failurePolicy": {"rules": [{"name": "any", "match": {}, "action": "FailWorkload"}]}});
        self.create("research", "broken", "middle", 1, rule).await?;
        let pods = self.running("research", "broken").await?;
        pause(15).await;
        self.exit(pods.first().context("a pod")?, 3).await?;
        pause(15).await;
        Ok(())
    }

    /// A node is cordoned while there is room.
    async fn complete(&self) -> Result<()> {
        println!("4: one completes, a node is cordoned");
        let pods = self.running("vision", "resnet").await?;
        let node = pods
            .first()
            .and_then(|p| p.spec.as_ref()?.node_name.clone());
        let node = node.context("a node")?;
        self.cluster.kubectl(&["cordon", &node]).await?;
        self.end("vision", "resnet").await?;
        pause(25).await;
        self.cluster.kubectl(&["uncordon", &node]).await?;
        self.running("research", "sweep").await?;
        pause(20).await;
        Ok(())
    }

    async fn more_failures(&self) -> Result<()> {
        println!("5: more failures, and a queue");
        self.checkpoint("language", "llama").await?;
        self.fail("language", "llama", 3, 137).await?;
        pause(20).await;
        self.cluster
            .lockstep(&["resume", "later", "-n", "language"])
            .await?;
        self.create("vision", "clip", "middle", 3, saving(3))
            .await?;
        pause(20).await;
        self.running("vision", "clip").await?;
        self.cluster
            .lockstep(&["checkpoint", "clip", "-n", "vision"])
            .await?;
        self.fail("vision", "clip", 1, 1).await?;
        pause(20).await;
        self.end("vision", "clip").await?;
        self.running("research", "sweep").await?;
        pause(15).await;
        self.fail("research", "sweep", 0, 1).await?;
        pause(10).await;
        self.create("vision", "segment", "middle", 6, json!({}))
            .await?;
        pause(15).await;
        Ok(())
    }

    async fn create(
        &self,
        team: &str,
        name: &str,
        class: &str,
        members: i32,
        more: Value,
    ) -> Result<()> {
        let mut spec = json!({"priorityClassName": class});
        merge(&mut spec, more);
        let workload: TrainingWorkload = serde_json::from_value(gang(name, members, 8, spec))?;
        self.workloads(team)
            .create(&PostParams::default(), &workload)
            .await?;
        Ok(())
    }

    fn workloads(&self, team: &str) -> Api<TrainingWorkload> {
        Api::namespaced(self.client.clone(), team)
    }

    /// Waits until all members run, and returns their pods.
    async fn running(&self, team: &str, name: &str) -> Result<Vec<Pod>> {
        eventually(&format!("{name} to run"), PATIENCE, async || {
            let status = self.workloads(team).get(name).await?.status;
            let status = status.context("no status yet")?;
            let ready = is_true(&status.conditions, types::READY);
            ensure!(
                ready && status.phase == Some(Phase::Running),
                "{:?}",
                status.phase
            );
            Ok(())
        })
        .await?;
        let mut pods = Api::<Pod>::namespaced(self.client.clone(), team)
            .list(&ListParams::default().labels(&format!("{}={name}", labels::WORKLOAD)))
            .await?
            .items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        pods.sort_by_key(hostname);
        Ok(pods)
    }

    async fn exit(&self, pod: &Pod, code: i32) -> Result<()> {
        let namespace = pod.namespace().unwrap_or_default();
        let name = pod.name_any();
        eventually(&format!("{name} to end"), PATIENCE, async || {
            self.nodes.exit(&namespace, &name, "trainer", code).await
        })
        .await
    }

    /// A member fails, and the gang restarts.
    async fn fail(&self, team: &str, name: &str, member: usize, code: i32) -> Result<()> {
        let restarts = async || {
            let status = self.workloads(team).get(name).await?.status;
            anyhow::Ok(status.context("a status")?.restarts.total)
        };
        let pods = self.running(team, name).await?;
        let before = restarts().await?;
        self.exit(pods.get(member).context("a member")?, code)
            .await?;
        eventually("the failure to be answered", PATIENCE, async || {
            ensure!(restarts().await? > before, "not yet");
            Ok(())
        })
        .await?;
        self.running(team, name).await.map(drop)
    }

    /// All members succeed.
    async fn end(&self, team: &str, name: &str) -> Result<()> {
        for pod in self.running(team, name).await? {
            self.exit(&pod, 0).await?;
        }
        Ok(())
    }

    async fn checkpoint(&self, team: &str, name: &str) -> Result<()> {
        self.cluster
            .lockstep(&["checkpoint", name, "-n", team, "--record"])
            .await
            .map(drop)
    }
}

//! Answers the questions of `docs/oncall.md` with its kubectl commands.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::{PATIENCE, Scenario};
use lockstep_cluster::{Cluster, eventually};
use lockstep_e2e::{fresh, patient};
use serde_json::json;

use crate::console::{blocks, commands, prints};

const PAGE: &str = "docs/oncall.md";
/// Accelerators per node on the page, and per member.
const GPUS: i32 = 8;

/// Events before each block of the page.
async fn happens(t: &Scenario<'_>, block: usize) -> Result<()> {
    let of = |class: &str| json!({"priorityClassName": class});
    match block {
        // 64 accelerators, and a gang that needs 72.
        0 => {
            t.create(gang("large", 9, GPUS, json!({}))).await?;
            t.workload("large", "to be refused", |w| {
                let reason = w.status.as_ref().map(|s| s.reason.as_str());
                ensure!(reason == Some("ExceedsCluster"), "{reason:?}");
                Ok(())
            })
            .await
            .map(drop)
        }
        // A member fails.
        1 => {
            t.kubectl(&["delete", "tw", "large"]).await?;
            t.create(gang("tuning", 8, GPUS, of("low"))).await?;
            let pods = t.running("tuning").await?;
            t.exit(pods.get(3).context("a fourth")?, 3).await?;
            t.restarted("tuning", 1).await?;
            t.running("tuning").await.map(drop)
        }
        // A more important job of another user.
        2 => {
            t.create(gang("urgent", 8, GPUS, of("high"))).await?;
            t.running("urgent").await.map(drop)
        }
        _ => healthy(t.cluster, &t.name).await,
    }
}

/// Pods of the manager as from its Deployment, on nodes. The managers themselves are processes of
/// the test.
async fn healthy(cluster: &Cluster, pool: &str) -> Result<()> {
    let place = cluster.method.manager();
    let client = cluster.client().await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &place.namespace);
    let template = deployments.get(&place.name).await?.spec.template;
    let pods: Api<Pod> = Api::namespaced(client, &place.namespace);
    for instance in ["a", "b"] {
        let mut pod = Pod {
            metadata: template.metadata.clone().unwrap_or_default(),
            spec: template.spec.clone(),
            status: None,
        };
        let name = format!("{}-{instance}", place.name);
        pod.metadata.name = Some(name.clone());
        let spec = pod.spec.as_mut().context("a spec")?;
        spec.node_name = Some(format!("{pool}-0000"));
        pods.create(&PostParams::default(), &pod).await?;
        eventually("the pod to be ready", PATIENCE, async || {
            let status = pods.get(&name).await?.status.context("no status")?;
            let mut conditions = status.conditions.iter().flatten();
            ensure!(conditions.any(|c| c.type_ == "Ready" && c.status == "True"));
            Ok(())
        })
        .await?;
    }
    // The controller of Deployments is absent.
    let counted = json!({"status": {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2}});
    let params = PatchParams::default();
    deployments
        .patch_status(&place.name, &params, &Patch::Merge(counted))
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_idle_accelerators_failures_evictions_and_healthy_workloads() -> Result<()> {
    let cluster = fresh("oncall", patient()).await?;
    if !cluster.is_ours("a cluster of its own") {
        return Ok(());
    }
    let _manager = cluster.start_manager("a").await?;
    let shape = Shape {
        nodes: 8,
        gpus: GPUS,
        ..Shape::default()
    };
    scenario(&cluster, "ml", &shape, async |t| {
        let blocks = blocks(PAGE, "console")?;
        ensure!(blocks.len() == 4, "{} questions", blocks.len());
        let mut wrong = Vec::new();
        for (at, block) in blocks.iter().enumerate() {
            happens(t, at).await?;
            for (command, expected) in commands(block)? {
                let args: Vec<&str> = command.split(' ').collect();
                let elsewhere = args.iter().any(|a| matches!(*a, "-n" | "-A"));
                let printed = match args.strip_prefix(&["lockstep"]) {
                    Some(args) => t.cluster.lockstep(args).await?,
                    None if elsewhere => t.cluster.kubectl(&args).await?,
                    None => t.kubectl(&args).await?,
                };
                if !prints(&expected, &printed) {
                    wrong.push(format!("$ kubectl {command}\n{printed}"));
                }
            }
        }
        ensure!(
            wrong.is_empty(),
            "{PAGE} has something else than\n{}",
            wrong.join("\n")
        );
        Ok(())
    })
    .await
}

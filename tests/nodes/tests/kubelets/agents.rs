//! Agents, kubelets and runtimes that are away for a while.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use lockstep_api::NodeAgent;
use lockstep_cluster::install;
use lockstep_cluster::scenario::{kept, node};
use lockstep_containers::job::now;
use lockstep_nodes::RealCluster;
use lockstep_nodes::real_cluster::supervises;
use rustix::process::Signal;
use serde_json::json;

use crate::{addresses, apart, on_nodes, restarted, started};

/// Deletes the agent's pod of a node.
async fn delete_agent(real: &RealCluster, name: &str) -> Result<()> {
    let (namespace, _) = install::AGENT;
    let pods: Api<Pod> = Api::namespaced(real.cluster.client().await?, namespace);
    let all = pods.list(&ListParams::default()).await?.items;
    let agent = all.iter().find(|p| node(p) == name).context("an agent")?;
    let now = DeleteParams::default().grace_period(0);
    pods.delete(&agent.name_any(), &now).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_survives_the_agent_that_is_replaced_meanwhile() -> Result<()> {
    on_nodes("agent", async |real, t| {
        let (job, before) = started(t, 4, json!({}), json!({})).await?;
        let killed = now()?;
        real.signal(&before[0], Signal::KILL)?;
        delete_agent(real, &node(&before[2])).await?;
        let after = job.trains(t, killed).await?;
        restarted(t, "gpt", 1).await?;
        kept(&before, &after, 0)?;
        ensure!(addresses(&before) == addresses(&after), "addresses changed");
        apart(&job)?;
        let agents = Api::<NodeAgent>::all(t.client.clone());
        supervises(&agents, &node(&before[2])).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_place_needs_no_kubelet() -> Result<()> {
    on_nodes("kubelet", async |real, t| {
        let (job, before) = started(t, 4, json!({}), json!({})).await?;
        let machine = real.node_of(&before[0])?;
        machine.hold("kubelet")?;
        let killed = now()?;
        real.signal(&before[0], Signal::KILL)?;
        let outcome = job.trains(t, killed).await;
        machine.release("kubelet")?;
        restarted(t, "gpt", 1).await?;
        real.ready(&machine.name).await?;
        kept(&before, &outcome?, 0)?;
        kept(&before, &t.running("gpt").await?, 0)?;
        apart(&job)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_place_completes_once_an_absent_agent_is_back() -> Result<()> {
    on_nodes("absent", async |real, t| {
        let (job, before) = started(t, 4, json!({}), json!({})).await?;
        let machine = real.node_of(&before[0])?;
        // Without its kubelet the agent stays away.
        machine.hold("kubelet")?;
        machine.kill("lockstep-agent")?;
        let killed = now()?;
        real.signal(&before[0], Signal::KILL)?;
        machine.release("kubelet")?;
        real.ready(&machine.name).await?;
        let after = job.trains(t, killed).await?;
        let (_, cause) = restarted(t, "gpt", 1).await?;
        ensure!(cause.pod == before[0].name_any(), "{cause:?}");
        kept(&before, &after, 0)?;
        apart(&job)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_place_needs_no_containerd() -> Result<()> {
    on_nodes("containerd", async |real, t| {
        let (job, before) = started(t, 4, json!({}), json!({})).await?;
        let machine = real.node_of(&before[0])?;
        let killed = now()?;
        machine.kill("containerd")?;
        real.signal(&before[0], Signal::KILL)?;
        let after = job.trains(t, killed).await?;
        restarted(t, "gpt", 1).await?;
        kept(&before, &after, 0)?;
        apart(&job)
    })
    .await
}

//! Interruptions of agents, kubelets and runtimes.

use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use lockstep_api::NodeAgent;
use lockstep_cluster::manifests::{gang, merge};
use lockstep_cluster::scenario::{kept, node};
use lockstep_cluster::{eventually, install};
use lockstep_containers::containerd::IMAGE;
use lockstep_containers::job::now;
use lockstep_nodes::RealCluster;
use lockstep_nodes::incidents::{apart, restarts_in_containers, started};
use lockstep_nodes::real_cluster::{LIMIT, supervises};
use rustix::process::Signal;
use serde_json::json;

use crate::{kill_restarts_in_containers, on_nodes, restarted};

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
        restarts_in_containers(t, &job, &before, async || {
            real.signal(&before[0], Signal::KILL)?;
            delete_agent(real, &node(&before[2])).await
        })
        .await?;
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
        restarted(t, 1).await?;
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
        // Without its kubelet, the agent does not restart.
        machine.hold("kubelet")?;
        machine.kill("lockstep-agent")?;
        let killed = now()?;
        real.signal(&before[0], Signal::KILL)?;
        machine.release("kubelet")?;
        real.ready(&machine.name).await?;
        let after = job.trains(t, killed).await?;
        let cause = restarted(t, 1).await?;
        ensure!(cause.pod == before[0].name_any(), "{cause:?}");
        kept(&before, &after, 0)?;
        apart(&job)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_node_whose_agent_stays_away_train_again() -> Result<()> {
    on_nodes("away", async |real, t| {
        let (job, before) = started(t, 4, json!({}), json!({})).await?;
        let machine = real.node_of(&before[0])?;
        let (_, agent) = install::AGENT;
        // Without its image the agent cannot start again.
        machine.hide_image(agent).await?;
        machine.kill(agent)?;
        let killed = now()?;
        real.signal(&before[0], Signal::KILL)?;
        let outcome = job.trains(t, killed).await;
        machine.show_image(agent).await?;
        let after = outcome?;
        restarted(t, 1).await?;
        for (old, new) in before.iter().zip(&after) {
            let away = node(old) == machine.name;
            ensure!(
                away || old.uid() == new.uid(),
                "{} was replaced",
                old.name_any()
            );
        }
        apart(&job)?;
        supervises(&Api::<NodeAgent>::all(t.client.clone()), &machine.name).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_place_needs_no_containerd() -> Result<()> {
    on_nodes("containerd", async |real, t| {
        let (job, before) = started(t, 4, json!({}), json!({})).await?;
        real.node_of(&before[0])?.kill("containerd")?;
        kill_restarts_in_containers(real, t, &job, &before, 0)
            .await
            .map(drop)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_waits_for_its_full_log_restarts_in_place() -> Result<()> {
    on_nodes("log", async |real, t| {
        let mut object = gang("gpt", 2, 8, json!({"failurePolicy": {}}));
        let writes =
            json!({"image": IMAGE, "command": ["sh", "-c", "while :; do echo step; done"]});
        let pod = &mut object["spec"]["groups"][0]["template"]["spec"];
        merge(&mut pod["containers"][0], writes);
        t.create(object).await?;
        let before = t.running("gpt").await?;
        let blocked = real.node_of(&before[0])?;
        // Without containerd, no process reads the logs of its containers.
        blocked.hold("containerd")?;
        let process = real.process(&before[0], "sh")?;
        eventually("the member to wait for its log", LIMIT, async || {
            let waits_in = fs::read_to_string(format!("/proc/{process}/wchan"))?;
            ensure!(waits_in.contains("pipe"), "{waits_in}");
            Ok(())
        })
        .await?;
        let killed = real.process(&before[1], "sh")?;
        lockstep_containers::processes::signal(killed, Signal::KILL)?;
        let outcome = restarted(t, 1).await;
        blocked.release("containerd")?;
        outcome?;
        real.ready(&blocked.name).await?;
        let after = t.running("gpt").await?;
        kept(&before, &after, 0)?;
        ensure!(
            real.process(&after[0], "sh")? != process,
            "the process is the old one"
        );
        Ok(())
    })
    .await
}

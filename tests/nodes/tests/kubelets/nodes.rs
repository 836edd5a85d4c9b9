//! Nodes that are lost, return and reboot.

use anyhow::Result;
use kube::Api;
use lockstep_api::NodeAgent;
use lockstep_containers::job::now;
use lockstep_nodes::incidents::{apart, loses_a_node, node_to_lose, started};
use lockstep_nodes::real_cluster::supervises;
use serde_json::json;

use crate::on_nodes;

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_node_without_network_move_and_the_others_restart_in_place() -> Result<()> {
    on_nodes("partition", async |real, t| {
        let policy = json!({"failurePolicy": {"nodeLostSeconds": 5}});
        let (job, before) = started(t, 4, policy, json!({})).await?;
        loses_a_node(real, t, &job, &node_to_lose(&before)?)
            .await
            .map(drop)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_trains_again_after_a_node_has_rebooted() -> Result<()> {
    on_nodes("reboot", async |real, t| {
        let (job, before) = started(t, 4, json!({}), json!({})).await?;
        let machine = real.node_of(&before[3])?;
        let rebooted = now()?;
        machine.reboot().await?;
        real.ready(&machine.name).await?;
        job.trains(t, rebooted).await?;
        apart(&job)?;
        let agents = Api::<NodeAgent>::all(t.client.clone());
        supervises(&agents, &machine.name).await
    })
    .await
}

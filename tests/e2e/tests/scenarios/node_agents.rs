//! The objects of the node agents.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::DeleteParams;
use lockstep_api::NodeAgent;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::PATIENCE;
use lockstep_cluster::{eventually, scenario};
use lockstep_e2e::cluster;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_object_has_no_managed_fields_and_is_deleted_only_with_its_node() -> Result<()> {
    scenario(
        cluster().await?,
        "agents",
        &Shape {
            nodes: 2,
            ..Shape::default()
        },
        async |t| {
            let (agents, nodes): (Api<NodeAgent>, Api<Node>) =
                (Api::all(t.client.clone()), Api::all(t.client.clone()));
            let [gone, stays] = t.nodes.names() else {
                anyhow::bail!("{:?}", t.nodes.names())
            };
            eventually(
                "both agents to have said what they are",
                PATIENCE,
                async || {
                    for node in [gone, stays] {
                        let object = agents.get(node).await?;
                        ensure!(object.status.is_some(), "{node} has no status");
                        let managers = object.metadata.managed_fields;
                        ensure!(managers.is_none(), "{node} has {managers:?}");
                    }
                    Ok(())
                },
            )
            .await?;
            // The machine ends first, because a remaining kubelet would register again.
            t.nodes.vanish(gone).await?;
            nodes.delete(gone, &DeleteParams::default()).await?;
            eventually(
                "the agent of the deleted node to be collected",
                PATIENCE,
                async || {
                    ensure!(agents.get_opt(gone).await?.is_none(), "still there");
                    Ok(())
                },
            )
            .await?;
            ensure!(
                agents.get_opt(stays).await?.is_some(),
                "the agent of another node went, too"
            );
            Ok(())
        },
    )
    .await
}

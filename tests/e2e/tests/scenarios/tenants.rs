//! The manifests of the page for administrators of tenants do what it says.

use anyhow::{Context, Result, bail, ensure};
use kube::api::PostParams;
use lockstep_api::TrainingWorkload;
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::PATIENCE;
use lockstep_cluster::{eventually, scenario};
use lockstep_e2e::cluster;
use serde_json::json;

use crate::console::blocks;

const PAGE: &str = "docs/tenants.md";

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_the_gangs_of_a_class_and_a_policy_refuses_them() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("priority classes") {
        return Ok(());
    }
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    scenario(cluster, "tenants", &shape, async |t| {
        let manifests = blocks(PAGE, "yaml")?;
        let [quota, policy] = manifests.as_slice() else {
            bail!("{} manifests", manifests.len());
        };
        for (name, text) in [("quota", quota), ("policy", policy)] {
            let path = t.cluster.folder().join(format!("tenants-{name}.yaml"));
            std::fs::write(&path, text)?;
            t.kubectl(&["apply", "-f", &path.display().to_string()])
                .await?;
        }
        let of = |class: &str| json!({"priorityClassName": class});
        t.create(gang("held", 1, 8, of("high"))).await?;
        t.condition_is("held", types::ADMITTED, false, reasons::QUOTA_EXCEEDED)
            .await?;
        t.create(gang("runs", 1, 8, of("low"))).await?;
        t.running("runs").await?;

        cluster
            .kubectl(&["label", "namespace", &t.name, "tenants=guests"])
            .await?;
        let guest: TrainingWorkload = serde_json::from_value(gang("guest", 1, 8, of("high")))?;
        let asked = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        eventually("the policy to be in force", PATIENCE, async || {
            let refused = t.workloads().create(&asked, &guest).await.err();
            let refused = refused.context("taken")?.to_string();
            let words = "guests have the priority classes low and middle";
            ensure!(refused.contains(words), "{refused}");
            Ok(())
        })
        .await
    })
    .await
}

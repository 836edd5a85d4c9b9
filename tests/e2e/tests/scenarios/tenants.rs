//! The manifests and roles of the page for administrators of tenants work as described.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use kube::api::PostParams;
use lockstep_api::TrainingWorkload;
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::manifests::{gang, pin_to_pool};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::roles::grants;
use lockstep_cluster::scenario::PATIENCE;
use lockstep_cluster::{Cluster, eventually, scenario};
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
        let [quota, policy, budget] = manifests.as_slice() else {
            bail!("{} manifests", manifests.len());
        };
        for (name, text) in [("quota", quota), ("policy", policy), ("budget", budget)] {
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

/// Rights of a role, one line per resource.
async fn allowed(cluster: &Cluster, role: &str) -> Result<String> {
    let text = cluster
        .kubectl(&["get", "clusterrole", role, "-o", "yaml"])
        .await?;
    let mut verbs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for grant in grants(&text, &[role])? {
        verbs.entry(grant.resource).or_default().push(grant.verb);
    }
    let lines = verbs.into_iter().map(|(resource, mut verbs)| {
        verbs.sort();
        format!("{resource}: {}\n", verbs.join(" "))
    });
    Ok(lines.collect())
}

const USER: &str = "\
events: get list watch
podgroups: get list watch
podgroups/status: get list watch
pods: get list watch
pods/log: get
restartorders: get list watch
trainingworkloads: create delete get list patch update watch
trainingworkloads/scale: get list patch update watch
trainingworkloads/status: get list watch
workloads: get list watch
";

const ADMIN: &str = "\
events: get list watch
nodeagents: get list watch
podgroups: get list watch
podgroups/status: get list watch
pods: get list watch
pods/log: get
priorityclasses: get list watch
restartorders: get list watch
trainingworkloads: create delete deletecollection get list patch update watch
trainingworkloads/scale: get list patch update watch
trainingworkloads/status: get list watch
workloads: get list watch
";

#[tokio::test(flavor = "multi_thread")]
async fn the_user_role_allows_training_and_the_admin_role_reads_more() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("tokens of other identities") || !cluster.has_nodes("aggregated roles") {
        return Ok(());
    }
    let shape = Shape {
        nodes: 1,
        ..Shape::default()
    };
    scenario(cluster, "batch", &shape, async |t| {
        for (role, expected) in [
            ("lockstep-batch-user", USER),
            ("lockstep-batch-admin", ADMIN),
        ] {
            eventually("the role to have its rules", PATIENCE, async || {
                let allowed = allowed(cluster, role).await?;
                ensure!(allowed == expected, "{role}: {allowed}");
                Ok(())
            })
            .await?;
        }
        let bound = ["create", "rolebinding", "trains", "--user=trains"];
        let role = ["--clusterrole=lockstep-batch-user"];
        t.kubectl(&[&bound[..], &role].concat()).await?;
        let path = cluster.folder().join("batch.json").display().to_string();
        let mut llama = gang("llama", 1, 8, json!({}));
        pin_to_pool(&mut llama, &t.name);
        std::fs::write(&path, llama.to_string())?;
        let token = ["--token", "user:trains"];
        eventually("the binding to be in force", PATIENCE, async || {
            let made = ["create", "-f", &path];
            t.kubectl(&[&made[..], &token].concat()).await
        })
        .await?;
        t.running("llama").await?;
        for verb in [
            &["status", "llama"][..],
            &["explain", "llama"],
            &["top", "-l", "!team"],
            &["checkpoint", "llama", "--record"],
            &["restart", "llama", "--dry-run=server"],
        ] {
            let said = t.lockstep(&[verb, &token].concat()).await?;
            ensure!(!said.contains("not allowed"), "{verb:?}: {said}");
        }
        let elsewhere = cluster
            .lockstep(&[&["top", "-A"][..], &token].concat())
            .await;
        ensure!(elsewhere.is_err(), "{elsewhere:?}");
        Ok(())
    })
    .await
}

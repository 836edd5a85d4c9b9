//! Jobs of other projects, converted by the program, are accepted and run.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use lockstep_api::condition::{reasons, types};
use lockstep_api::names::labels;
use lockstep_cluster::cluster::repository;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::{PATIENCE, Scenario, node};
use lockstep_cluster::wait::eventually;
use lockstep_e2e::cluster;
use serde_json::{Value, json};

/// One example of each origin kind, the name of its workload, and its members.
const RUN: [(&str, &str, usize); 8] = [
    ("pytorchjob/equal-roles", "digits", 4),
    ("tfjob/workers", "mirrored", 2),
    ("jaxjob/cpu", "jax-sum", 2),
    ("mpijob/openmpi", "pi", 3),
    ("trainjob/torch", "gpt-small", 4),
    ("jobset/torch", "lenet", 4),
    ("volcano/pytorch", "dist-torch", 3),
    ("job/indexed", "indexed", 4),
];

fn folder() -> PathBuf {
    repository().join("operator/convert/tests/examples")
}

/// The workloads that the program prints for a file, as kubectl reads them.
async fn read_by_kubectl(t: &Scenario<'_>, file: &str) -> Result<Vec<Value>> {
    let output = t.cluster.lockstep(&["convert", "-f", file]).await?;
    let documents = output.split("---\n");
    let workloads: Vec<&str> = documents
        .filter(|d| d.contains("\nkind: TrainingWorkload\n"))
        .collect();
    let text = workloads.join("---\n");
    let path = t.cluster.folder().join(format!("{}.yaml", t.name));
    std::fs::write(&path, text)?;
    let path = path.display().to_string();
    let create = ["create", "--dry-run=client", "-o", "json", "-f", &path];
    // One object after the other, without a list.
    let read = t.cluster.kubectl(&create).await?;
    let read = serde_json::Deserializer::from_str(&read).into_iter();
    Ok(read.collect::<serde_json::Result<_>>()?)
}

/// The workloads that the program makes of a file, for the namespace of the scenario.
async fn converted(t: &Scenario<'_>, file: PathBuf) -> Result<Vec<Value>> {
    let file = file.display().to_string();
    let convert = ["convert", "-o", "json", "-f", &file];
    let made: Value = serde_json::from_str(&t.cluster.lockstep(&convert).await?)?;
    let mut objects = match made["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![made],
    };
    objects.retain(|object| object["kind"] == "TrainingWorkload");
    let read = read_by_kubectl(t, &file).await?;
    let specs =
        |objects: &[Value]| -> Vec<Value> { objects.iter().map(|o| o["spec"].clone()).collect() };
    ensure!(
        specs(&read) == specs(&objects),
        "{file}: kubectl reads another workload than the program has made"
    );
    let mut out = Vec::new();
    for mut object in objects {
        let metadata = object["metadata"].as_object_mut().context("metadata")?;
        metadata.remove("namespace");
        out.push(object);
    }
    Ok(out)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_converted_job_of_each_kind_runs() -> Result<()> {
    scenario(
        cluster().await?,
        "converted",
        &Shape::default(),
        async |t| {
            let keys = [
                "create",
                "secret",
                "generic",
                "pi-ssh",
                "--from-literal=id_rsa=a",
            ];
            t.kubectl(&keys).await?;
            for (example, name, _) in RUN {
                for object in converted(t, folder().join(format!("{example}.yaml"))).await? {
                    let created = t.create(object).await?.name_any();
                    ensure!(created == name, "{example}: {created}");
                }
            }
            for (example, name, members) in RUN {
                let pods = t.running(name).await?;
                ensure!(pods.len() == members, "{example}: {} pods run", pods.len());
            }
            let pods = t.pods("pi").await?;
            let launcher = pods.iter().map(ResourceExt::name_any);
            let launcher = launcher.into_iter().find(|n| n.starts_with("pi-launcher-"));
            let launcher = launcher.context("a launcher")?;
            t.nodes.exit(&t.name, &launcher, "mpi-launcher", 0).await?;
            let (reason, _) = t.condition("pi", types::COMPLETE).await?;
            ensure!(reason == reasons::SUCCESS_POLICY, "{reason}");
            Ok(())
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_maintenance_example_of_jobset_survives_a_drain() -> Result<()> {
    scenario(
        cluster().await?,
        "maintained",
        &Shape::default(),
        async |t| {
            let file = folder().join("jobset/maintenance.yaml");
            for object in converted(t, file).await? {
                t.create(object).await?;
            }
            let pods = t.running("maintenance").await?;
            let leader = pods
                .iter()
                .find(|p| p.name_any().contains("-leader-"))
                .context("a leader")?;
            let node = node(leader);
            t.kubectl(&["drain", &node, "--delete-emptydir-data", "--force"])
                .await?;
            let status = t.restarted("maintenance", 1).await?;
            ensure!(
                status.restarts.counted == 0,
                "the drain was counted: {:?}",
                status.restarts
            );
            t.running("maintenance").await.map(drop)
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_a_budget_that_counts_replicas_for_pods() -> Result<()> {
    scenario(
        cluster().await?,
        "miscounted",
        &Shape::default(),
        async |t| {
            let file = folder().join("job/indexed.yaml");
            for object in converted(t, file).await? {
                t.create(object).await?;
            }
            t.running("indexed").await?;
            let members = json!({"matchLabels": {labels::WORKLOAD: "indexed"}});
            for (name, limit) in [("percent", json!("50%")), ("one", json!(1))] {
                let field = if name == "one" {
                    "minAvailable"
                } else {
                    "maxUnavailable"
                };
                t.create(
                    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                    "metadata": {"name": name}, "spec": {field: limit, "selector": members}}),
                )
                .await?;
            }
            t.budget_counted("one").await?;
            eventually("the doctor to name the budget", PATIENCE, async || {
                let found = t.cluster.lockstep(&["doctor", "-o", "json"]).await;
                let found = found.unwrap_or_else(|error| format!("{error:#}"));
                let expected = format!("{}/percent allows no eviction; write minAvailable", t.name);
                ensure!(found.contains(&expected), "{found}");
                ensure!(!found.contains(&format!("{}/one ", t.name)), "{found}");
                Ok(())
            })
            .await
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_converted_example_passes_strict_validation() -> Result<()> {
    let shape = Shape {
        nodes: 1,
        ..Shape::default()
    };
    scenario(cluster().await?, "strict", &shape, async |t| {
        let mut seen = 0;
        for origin in std::fs::read_dir(folder())? {
            for file in std::fs::read_dir(origin?.path())? {
                let file = file?.path();
                if file.display().to_string().ends_with(".out.yaml") {
                    continue;
                }
                for object in converted(t, file.clone()).await? {
                    let name = object["metadata"]["name"].as_str().context("a name")?;
                    let strict = PatchParams::apply("convert").dry_run().validation_strict();
                    t.workloads()
                        .patch(name, &strict, &Patch::Apply(&object))
                        .await
                        .with_context(|| file.display().to_string())?;
                    seen += 1;
                }
            }
        }
        ensure!(seen >= 120, "{seen} workloads");
        Ok(())
    })
    .await
}

//! Jobs of other projects, converted by the program, are accepted and run.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::cluster::repository;
use lockstep_cluster::manifests::parse;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::Scenario;
use lockstep_e2e::cluster;
use serde_json::Value;

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
    repository().join("operator/cli/tests/convert")
}

/// The workloads that the program makes of a file, for the namespace of the scenario.
async fn converted(t: &Scenario<'_>, file: PathBuf) -> Result<Vec<Value>> {
    let file = file.display().to_string();
    let output = t.cluster.lockstep(&["convert", "-f", &file]).await?;
    let mut out = Vec::new();
    for document in output.split("\n---\n") {
        let mut object = parse(document)?;
        let metadata = object["metadata"].as_object_mut().context("metadata")?;
        metadata.remove("namespace");
        if object["kind"] == "TrainingWorkload" {
            out.push(object);
        }
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
        ensure!(seen >= 80, "{seen} workloads");
        Ok(())
    })
    .await
}

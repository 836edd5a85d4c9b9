//! Frameworks start as docs/environment.md says, in gangs of real processes.

use std::path::Path;

use anyhow::{Context, Result};
use lockstep_api::condition::types;
use lockstep_cluster::cluster::repository;
use lockstep_cluster::manifests::{gang, merge};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_e2e::cluster;
use serde_json::json;

/// Members of each gang.
const MEMBERS: i32 = 3;

/// Fails unless each process knows all the others by their ranks.
const GATHERS_RANKS: &str = "
from jax.experimental import multihost_utils
ranks = multihost_utils.process_allgather(jax.process_index())
assert list(ranks) == list(range(int(os.environ['PET_NNODES']))), ranks
";

/// The code of a row of the table of frameworks.
fn documented(page: &str, framework: &str) -> Result<String> {
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| {framework} |")))
        .with_context(|| format!("no row {framework}"))?;
    let code = row.split('`').nth(1).context("no code in the row")?;
    Ok(code.to_owned())
}

#[tokio::test]
async fn jax_starts_with_the_documented_call() -> Result<()> {
    let python = repository().join("target/frameworks/bin/python");
    let page = std::fs::read_to_string(repository().join("docs/environment.md"))?;
    let program = format!(
        "import os, jax\n{}\n{GATHERS_RANKS}",
        documented(&page, "JAX")?
    );
    let cluster = cluster().await?;
    let shape = Shape {
        args: processes(cluster.folder()),
        ..Shape::default()
    };
    scenario(cluster, "jax", &shape, async |t| {
        let mut workload = gang("jax", MEMBERS, 8, json!({}));
        let container = &mut workload["spec"]["groups"][0]["template"]["spec"]["containers"][0];
        merge(container, json!({"command": [python, "-c", program]}));
        t.create(workload).await?;
        t.condition("jax", types::COMPLETE).await?;
        Ok(())
    })
    .await
}

/// Arguments of nodes that run processes of this machine.
fn processes(folder: &Path) -> Vec<String> {
    vec![
        "--runtime=subprocess".into(),
        format!("--work-dir={}", folder.join("processes").display()),
    ]
}

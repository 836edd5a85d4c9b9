//! The README shows what users see: applies its manifest, plays its story, runs its commands and
//! compares their output.

use anyhow::{Context, Result, ensure};
use lockstep_cluster::manifests::{parse, pin_to_pool};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::{Scenario, uids};
use lockstep_e2e::cluster;
use serde_json::Value;

use crate::console::{blocks, commands, prints};

/// The workload of the README's story, and its file.
const NAME: &str = "llama";
const FILE: &str = "llama.yaml";
const PAGE: &str = "README.md";
/// The story: a member fails, and all members restart in their pods.
async fn one_dies(t: &Scenario<'_>) -> Result<()> {
    let before = t.running(NAME).await?;
    t.exit(before.get(2).context("a third member")?, 1).await?;
    t.restarted(NAME, 1).await?;
    ensure!(
        uids(&before) == uids(&t.running(NAME).await?),
        "pods were replaced"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readme_prints_what_its_commands_print() -> Result<()> {
    // The nodes of the README have the names of this scenario: node-0000 to node-0003.
    let shape = Shape {
        supervise: true,
        ..Shape::default()
    };
    scenario(cluster().await?, "node", &shape, async |t| {
        let manifest = blocks(PAGE, "yaml")?
            .into_iter()
            .next()
            .context("the README has a manifest")?;
        let mut manifest: Value = parse(&manifest)?;
        pin_to_pool(&mut manifest, &t.name);
        let path = t.cluster.folder().join(FILE).display().to_string();
        std::fs::write(&path, manifest.to_string())?;

        let mut wrong = Vec::new();
        for block in blocks(PAGE, "console")? {
            for (command, expected) in commands(&block)? {
                if command.starts_with("wait ") {
                    for pod in &t.running(NAME).await? {
                        t.exit(pod, 0).await?;
                    }
                }
                let args: Vec<String> = command
                    .split(' ')
                    .map(|a| if a == FILE { path.clone() } else { a.into() })
                    .collect();
                let printed = t
                    .kubectl(&args.iter().map(String::as_str).collect::<Vec<_>>())
                    .await?;
                if !prints(&expected, &printed) {
                    wrong.push(format!("$ kubectl {command}\n{printed}"));
                }
                if command.starts_with("apply ") {
                    one_dies(t).await?;
                }
            }
        }
        ensure!(
            wrong.is_empty(),
            "the README prints something else than\n{}",
            wrong.join("\n")
        );
        Ok(())
    })
    .await
}

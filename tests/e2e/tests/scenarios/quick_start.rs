//! The quick start prints what a user sees, and its sample does what its first lines say.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use lockstep_cluster::cluster::repository;
use lockstep_cluster::manifests::{parse, pin_to_pool};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::{Scenario, uids};
use lockstep_e2e::cluster;
use serde_json::Value;

use crate::console::{blocks, commands, prints};

const PAGE: &str = "docs/quickstart.md";
const NAME: &str = "hello";

/// A copy of a manifest whose pods run on the nodes of this scenario.
fn pinned(t: &Scenario<'_>, file: &str) -> Result<String> {
    let text = std::fs::read_to_string(repository().join(file))?;
    let mut manifest: Value = parse(&text)?;
    pin_to_pool(&mut manifest, &t.name);
    let name = Path::new(file).file_name().context("a file")?;
    let path = t.cluster.folder().join(name);
    std::fs::write(&path, manifest.to_string())?;
    Ok(path.display().to_string())
}

/// A member dies, and all go on in their pods.
async fn one_dies(t: &Scenario<'_>) -> Result<()> {
    let before = t.running(NAME).await?;
    t.exit(before.get(1).context("a second member")?, 137)
        .await?;
    t.restarted(NAME, 1).await?;
    let after = t.running(NAME).await?;
    ensure!(uids(&before) == uids(&after), "pods were replaced");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quick_start_prints_what_its_commands_print_on_nodes_without_accelerators() -> Result<()>
{
    let shape = Shape {
        nodes: 3,
        gpus: 0,
        supervise: true,
        ..Shape::default()
    };
    scenario(cluster().await?, "quick-start", &shape, async |t| {
        let mut wrong = Vec::new();
        for (at, block) in blocks(PAGE, "console")?.iter().enumerate() {
            if at == 1 {
                one_dies(t).await?;
            }
            for (command, expected) in commands(block)? {
                let mut args = Vec::new();
                for arg in command.split(' ') {
                    let is_file = arg.starts_with("samples/");
                    args.push(if is_file {
                        pinned(t, arg)?
                    } else {
                        arg.to_owned()
                    });
                }
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                let printed = t.kubectl(&args).await?;
                if !prints(&expected, &printed) {
                    wrong.push(format!("$ kubectl {command}\n{printed}"));
                }
            }
        }
        let wrong = wrong.join("\n");
        ensure!(wrong.is_empty(), "{PAGE} has something else than\n{wrong}");
        Ok(())
    })
    .await
}

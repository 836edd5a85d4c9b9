//! The quick start shows the output that users see, and its sample does what its first lines
//! promise.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
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

/// Arguments of the command with which the page finds the node for the kill of a member.
fn finds_node(blocks: &[String]) -> Result<Vec<String>> {
    let block = blocks.iter().find(|b| b.contains("pkill"));
    let line = block.and_then(|b| b.lines().next());
    let command = line.and_then(|l| l.strip_prefix("node=$(kubectl ")?.strip_suffix(')'));
    let command = command.context("node=$(kubectl ...) in the first line")?;
    let words = command.split(' ');
    Ok(words.map(|word| word.replace('\'', "")).collect())
}

/// A member fails on the node that the page names, and all members restart in their pods.
async fn one_dies(t: &Scenario<'_>) -> Result<()> {
    let before = t.running(NAME).await?;
    let find = finds_node(&blocks(PAGE, "sh")?)?;
    let find: Vec<&str> = find.iter().map(String::as_str).collect();
    let node = t.kubectl(&find).await?;
    let on = |pod: &Pod| pod.spec.as_ref()?.node_name.clone();
    let there: Vec<&Pod> = before
        .iter()
        .filter(|pod| on(pod).as_deref() == Some(node.trim()))
        .collect();
    ensure!(there.len() == before.len(), "not all are on {node}");
    t.exit(there.first().context("a member")?, 137).await?;
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

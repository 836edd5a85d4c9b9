//! `kubectl lockstep bug-report` and `doctor --canary` on a real API server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_cluster::manifests::{gang, pin_to_pool};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::process::run;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::Scenario;
use lockstep_e2e::{fresh, patient};
use serde_json::{Value, json};

use crate::console::{blocks, commands, prints};

const PAGE: &str = "docs/cli.md";
/// Begin of all secrets.
const SECRET: &str = "zecret";
const LONG: Duration = Duration::from_mins(1);

/// A gang with a secret in each place that a user writes.
fn secretive(pool: &str) -> Value {
    let mut manifest = gang("llama", 2, 8, json!({}));
    pin_to_pool(&mut manifest, pool);
    manifest["metadata"]["annotations"] = json!({"note": "zecret-note"});
    manifest["metadata"]["labels"] = json!({"owner": "zecret-label"});
    let template = &mut manifest["spec"]["groups"][0]["template"];
    template["metadata"]["annotations"] = json!({"note": "zecret-note"});
    let spec = &mut template["spec"];
    spec["volumes"] = json!([{"name": "v", "configMap": {"name": "zecret-map", "optional": true}}]);
    let container = &mut spec["containers"][0];
    container["env"] = json!([{"name": "TOKEN", "value": "zecret-env"}, {"name": "KEY", "valueFrom":
        {"secretKeyRef": {"name": "zecret-key", "key": "k", "optional": true}}}]);
    container["args"] = json!(["--key=zecret-arg"]);
    container["command"] = json!(["run", "zecret-command"]);
    manifest
}

async fn write(t: &Scenario<'_>, name: &str, object: &Value) -> Result<String> {
    let path = t.cluster.folder().join(name);
    tokio::fs::write(&path, object.to_string()).await?;
    Ok(path.display().to_string())
}

/// Files below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// Writes and unpacks a report, and compares the screen with the page.
async fn report(t: &Scenario<'_>) -> Result<()> {
    let folder = t.cluster.folder().join("bug-report");
    std::fs::create_dir(&folder)?;
    let archive = folder.join("bug-report.tar.gz").display().to_string();
    let screen = t.lockstep(&["bug-report", "-o", &archive]).await?;
    let screen = screen.replace(&format!("{}/", folder.display()), "");
    // The size differs between two runs.
    let sizes = screen.split(' ').zip(screen.split(' ').skip(1));
    let size = sizes
        .filter(|(_, unit)| *unit == "kB,")
        .map(|(size, _)| size);
    let size = size.last().context("a size")?;
    let screen = screen.replace(&format!(": {size} kB"), ": 8 kB");
    compare("bug-report -n ml", &screen)?;
    let unpack = ["-xzf", &archive, "-C", &folder.display().to_string()];
    run(Path::new("tar"), &unpack, &[], LONG).await?;
    let folder = folder.join("lockstep-bug-report");
    for path in files(&folder)? {
        let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        for private in [SECRET, "llama", &*format!("{}-0000", t.name)] {
            ensure!(
                !text.contains(private),
                "{}: {private}: {text}",
                path.display()
            );
        }
    }
    let pods = std::fs::read_to_string(folder.join("objects/pods.json"))?;
    ensure!(
        pods.contains("\"exitCode\": 3") || pods.contains("\"restartCount\""),
        "{pods}"
    );
    let history = std::fs::read_to_string(folder.join("objects/trainingworkloads.json"))?;
    ensure!(history.contains("\"exitCode\": 3"), "{history}");
    let manifest = write(t, "new.json", &gang("new", 1, 8, json!({}))).await?;
    let snapshot = folder.join("cluster.json.zst").display().to_string();
    let whatif = ["whatif", "-f", &manifest, "--snapshot", &snapshot];
    let replayed = t.cluster.lockstep(&whatif).await;
    // The two nodes are full.
    let replayed = replayed.err().context("the gang fits")?.to_string();
    ensure!(replayed.contains("does not fit"), "{replayed}");
    Ok(())
}

/// Compares the output of a command with its block on the page.
fn compare(command: &str, printed: &str) -> Result<()> {
    for block in blocks(PAGE, "console")? {
        for (shown, expected) in commands(&block)? {
            if shown == format!("lockstep {command}") {
                ensure!(
                    prints(&expected, printed),
                    "{PAGE}: {command} prints\n{printed}"
                );
                return Ok(());
            }
        }
    }
    anyhow::bail!("{PAGE} lacks {command}")
}

async fn no_canary(t: &Scenario<'_>) -> Result<()> {
    let left = t.kubectl(&["get", "tw,pods", "-o", "name"]).await?;
    ensure!(!left.contains("canary"), "{left}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bug_report_has_no_secrets_and_a_canary_shows_whether_gangs_start() -> Result<()> {
    let cluster = fresh("bug-report", patient()).await?;
    if !cluster.is_ours("a cluster of its own") {
        return Ok(());
    }
    let mut manager = cluster.start_manager("a").await?;
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    scenario(&cluster, "ml", &shape, async |t| {
        let key = [
            "create",
            "secret",
            "generic",
            "zecret-key",
            "--from-literal=k=zecret-of-secret",
        ];
        t.kubectl(&key).await?;
        let map = [
            "create",
            "configmap",
            "zecret-map",
            "--from-literal=k=zecret-of-map",
        ];
        t.kubectl(&map).await?;
        let path = write(t, "llama.json", &secretive(&t.name)).await?;
        t.kubectl(&["apply", "-f", &path]).await?;
        let pods = t.running("llama").await?;
        t.exit(pods.first().context("a pod")?, 3).await?;
        t.restarted("llama", 1).await?;
        t.running("llama").await?;
        report(t).await?;

        let screen = t.lockstep(&["doctor", "--canary"]).await?;
        // The canary runs on one of two nodes.
        let screen = screen.replace("node ml-0001", "node ml-0000");
        compare("doctor -n ml --canary", &screen)?;
        no_canary(t).await?;
        manager.process.kill()?;
        let stopped = t.lockstep(&["doctor", "--canary", "--timeout", "3s"]).await;
        let stopped = stopped.err().context("a healthy installation")?.to_string();
        let line = "no manager has accepted it within 3s; removed";
        ensure!(stopped.contains(line), "{stopped}");
        no_canary(t).await
    })
    .await
}

//! The manager out of its image (`make image`), under containerd: read-only, as the image's own user
//! without capabilities, with the configuration that is installed. A job runs and restarts by it. Needs root: `make
//! test-containers`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::scenario::{scenario, uids};
use lockstep_cluster::{Cluster, Options, eventually, http, process};
use lockstep_containers::containerd::Run;
use lockstep_containers::fleet::{LIMIT, signal};
use lockstep_containers::job::now;
use lockstep_containers::{Fleet, Job};
use rustix::process::Signal;
use serde_json::{Value, json};

/// User of the image, as its configuration has it.
const NONROOT: &str = "65532";

/// What `make image` has written.
struct Built {
    archive: PathBuf,
    name: String,
    entrypoint: Vec<String>,
}

/// The layout of the manager's image.
fn built() -> Result<Built> {
    let exe = std::env::current_exe().context("path of this program")?;
    let folders = exe.ancestors().map(|folder| folder.join("images"));
    let folder = folders
        .into_iter()
        .find(|f| f.join("lockstep-manager.tar").is_file())
        .context("no image of the manager: run `make image`")?;
    let layout = folder.join("lockstep-manager");
    let read = |path: PathBuf| anyhow::Ok(serde_json::from_slice(&std::fs::read(path)?)?);
    let blob = |about: &Value| {
        let digest = about["digest"].as_str().context("a digest")?;
        read(layout.join("blobs").join(digest.replace(':', "/")))
    };
    let index: Value = read(layout.join("index.json"))?;
    let about = &index["manifests"][0];
    let name = about["annotations"]["io.containerd.image.name"].as_str();
    // Those for other processors are the same but for the program.
    let manifest = blob(&blob(about)?["manifests"][0])?;
    let config = blob(&manifest["config"])?;
    Ok(Built {
        archive: folder.join("lockstep-manager.tar"),
        name: name.context("a name")?.to_owned(),
        entrypoint: serde_json::from_value(config["config"]["Entrypoint"].clone())?,
    })
}

/// It runs as the image's user and can become nobody else: no capability, not even one that a program
/// could gain.
fn confined(pid: u32) -> Result<()> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        let value = line.and_then(|l| l.strip_prefix(":")).map(str::trim);
        value.with_context(|| format!("no {name}: {status}"))
    };
    let user = field("Uid")?;
    ensure!(user.starts_with(NONROOT), "it runs as {user}");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let has = field(set)?;
        ensure!(has.bytes().all(|b| b == b'0'), "{set} is {has}");
    }
    ensure!(field("NoNewPrivs")? == "1", "it may gain privileges");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manager_in_its_image_places_a_job_and_restarts_it_in_its_containers() -> Result<()> {
    let image = built()?;
    let cluster = Cluster::start(&Options {
        config: json!({"leaderElection": null}),
        ..Options::named("image")
    })
    .await?;
    let mut fleet = Fleet::start(&cluster, "image", 2).await?;
    let manager = cluster.manager_launch("a").await?;
    let machine = fleet.nodes().first().context("a node")?;
    machine.containerd.import_archive(&image.archive).await?;
    let run = Run {
        image: &image.name,
        name: "manager",
        entrypoint: &image.entrypoint,
        args: &manager.launch.args,
        env: manager.launch.env.as_ref().context("its environment")?,
        folder: cluster.folder(),
    };
    let print = [run.args, &["--print-config".to_owned()]].concat();
    let printed = Run {
        name: "print-config",
        args: &print,
        ..run
    };
    let printed = machine.containerd.printed(&printed).await?;
    let args: Vec<&str> = print.iter().map(String::as_str).collect();
    let expected = process::run(&manager.launch.program, &args, &[], LIMIT).await?;
    ensure!(
        printed == expected && printed.contains("preemption:"),
        "not the configuration that it was given, {expected}: {printed}"
    );
    let process = machine.containerd.run_on_host_network(&run)?;
    eventually("the manager to be ready", LIMIT, async || {
        http::get(&manager.health, "/readyz")
            .await
            .with_context(|| process.log_tail(20))
    })
    .await?;
    let pid = machine.containerd.first_process("manager").await?;
    confined(pid)?;

    let shape = fleet.shape(&[]);
    scenario(&cluster, "image", &shape, async |t| {
        fleet.start_agents(t).await?;
        let job = Job::new(&t.cluster.folder().join(&t.name), "gpt", 4)?;
        t.create(job.manifest(json!({}), json!({}))?).await?;
        eventually("all members to step", LIMIT, async || job.since(0)).await?;
        let before = t.running("gpt").await?;
        t.condition_is("gpt", types::RESTARTS_IN_PLACE, true, reasons::SUPERVISED)
            .await?;
        let killed = now()?;
        let victim = before.get(1).context("a second")?;
        signal(t, victim, Signal::KILL).await?;
        eventually("all members to step", LIMIT, async || job.since(killed)).await?;
        let status = t.restarted("gpt", 1).await?;
        let cause = &status.history.first().context("history")?.cause;
        ensure!(
            cause.pod == victim.name_any() && cause.exit_code == Some(137),
            "{cause:?}"
        );
        ensure!(
            uids(&before) == uids(&t.running("gpt").await?),
            "pods were replaced"
        );
        Ok(())
    })
    .await
}

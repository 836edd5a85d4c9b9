//! Manager, agents and supervisors from their images (`make image`) under containerd: the manager
//! with a read-only root, as the image's user without capabilities and with the installed
//! configuration, an agent in the pod of its `DaemonSet`. Jobs run and restart with them. Needs
//! root: `make test-containers`.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::DeleteParams;
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::cluster::repository;
use lockstep_cluster::scenario::{Scenario, kept, scenario, uids};
use lockstep_cluster::{Cluster, Options, eventually, http, install, process};
use lockstep_containers::containerd::Run;
use lockstep_containers::fleet::{LIMIT, first_process, kill_container, signal};
use lockstep_containers::images::built;
use lockstep_containers::job::now;
use lockstep_containers::{Fleet, Job};
use rustix::process::Signal;
use serde_json::{Value, json};
use xtask::query;

/// User of the image.
const NONROOT: &str = "65532";
const ROOT: &str = "0";
/// Value of `Seccomp` in `/proc` for processes under a filter of system calls.
const FILTERED: &str = "2";
/// Members on the node whose agent is measured, and the limit of the agent's memory in bytes.
const MEMBERS: usize = 8;
const MOST_RESIDENT: u64 = 12_000_000;
/// Limit of the memory of a member's supervisor, in bytes.
const MOST_OF_SUPERVISOR: u64 = 1_500_000;

/// A field of `/proc/PID/status`.
fn field(pid: u32, name: &str) -> Result<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix(name));
    let value = line.and_then(|l| l.strip_prefix(":")).map(str::trim);
    let value = value.with_context(|| format!("no {name}: {status}"))?;
    Ok(value.to_owned())
}

/// Checks that the process runs as this user, has no capability and cannot gain one, and cannot
/// write to its root file system.
fn confined(pid: u32, user: &str) -> Result<()> {
    let users = field(pid, "Uid")?;
    ensure!(
        users.split_whitespace().all(|u| u == user),
        "it runs as {users}"
    );
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let has = field(pid, set)?;
        ensure!(has.bytes().all(|b| b == b'0'), "{set} is {has}");
    }
    ensure!(field(pid, "NoNewPrivs")? == "1", "it may gain privileges");
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mounts"))?;
    let mut mounts = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    let root = mounts.find(|m| m.get(1) == Some(&"/"));
    let options = root.as_ref().and_then(|m| m.get(3)).context("a root")?;
    ensure!(options.split(',').any(|o| o == "ro"), "/ is {options}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manager_in_its_image_places_a_job_and_restarts_it_in_its_containers() -> Result<()> {
    let image = built("lockstep-manager")?;
    let cluster = Cluster::start(&Options {
        config: json!({"leaderElection": null}),
        ..Options::named("image")
    })
    .await?;
    let supervisor = built("lockstep-run")?;
    let mut fleet = Fleet::start_from(&cluster, "image", 2, &supervisor).await?;
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
    confined(pid, NONROOT)?;

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

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_in_its_image_as_its_daemon_set_has_it_restarts_gangs_on_its_node() -> Result<()>
{
    let image = built("lockstep-agent")?;
    let config = json!({"workloads": {"healthyReset": "1s"}, "leaderElection": null});
    let options = Options {
        config,
        ..Options::named("daemon-set")
    };
    let cluster = Cluster::start(&options).await?;
    let _manager = cluster.start_manager("a").await?;
    let supervisor = built("lockstep-run")?;
    let mut fleet = Fleet::start_from(&cluster, "agent", 1, &supervisor).await?;
    let shape = fleet.shape(&[]);
    scenario(&cluster, "agent", &shape, async |t| {
        let agents = fleet.start_agents_from(t, &image).await?;
        let pod = agents.first().context("an agent")?.name_any();
        let pid = t.nodes.pid(install::AGENT.0, &pod, "agent").await?;
        let pid = u32::try_from(pid)?;
        confined(pid, ROOT)?;
        ensure!(field(pid, "Seccomp")? == FILTERED, "any system call");

        inside_its_containers(t).await?;
        let resident = resident(pid)?;
        println!("the agent of {MEMBERS} members: {resident} bytes resident");
        let parts = ["RssAnon", "RssFile"].map(|part| field(pid, part));
        ensure!(
            resident < MOST_RESIDENT,
            "{resident} bytes are resident: {parts:?}"
        );
        t.workloads()
            .delete("gpt", &DeleteParams::default())
            .await?;
        t.no_pods("gpt").await?;

        with_its_containers(t).await?;
        let metrics = fleet.nodes()[0].agent_metrics().await?;
        let stops = metrics
            .lines()
            .find_map(|l| l.strip_prefix("lockstep_agent_stops_total{result=\"stopped\"} "))
            .context("no metric of stops")?;
        ensure!(stops != "0", "it stopped no container");
        println!("{stops} containers stopped by the agent");
        let shown = shown()?;
        ensure!(!shown.is_empty(), "the dashboard asks for nothing");
        let missing: Vec<_> = shown.iter().filter(|name| !tells(&metrics, name)).collect();
        ensure!(missing.is_empty(), "shown, not told: {missing:?}");
        Ok(())
    })
    .await
}

/// Series on the dashboard of agents.
fn shown() -> Result<BTreeSet<String>> {
    let dashboards = query::dashboards(&repository())?;
    let agents = dashboards
        .get("agents")
        .context("the dashboard of agents")?;
    let queries = query::panel_queries(agents).into_iter();
    Ok(queries
        .flat_map(|(_, query)| query::series(&query))
        .collect())
}

/// True if the metrics contain a series. Series without values appear only with their type.
fn tells(metrics: &str, name: &str) -> bool {
    let uncounted = name
        .strip_suffix("_total")
        .map(|family| format!("# TYPE {family} counter"));
    metrics.lines().any(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|r| r.starts_with(['{', ' '])) || uncounted.as_deref() == Some(line)
    })
}

/// A gang under supervisors, one member of which is killed.
async fn inside_its_containers(t: &Scenario<'_>) -> Result<()> {
    let job = Job::new(&t.cluster.folder().join(&t.name), "gpt", MEMBERS)?;
    t.create(job.manifest(json!({}), one_accelerator())?)
        .await?;
    eventually("all members to step", LIMIT, async || job.since(0)).await?;
    let before = t.running("gpt").await?;
    let killed = now()?;
    signal(t, before.get(3).context("a fourth")?, Signal::KILL).await?;
    eventually("all members to step", LIMIT, async || job.since(killed)).await?;
    t.restarted("gpt", 1).await?;
    let after = t.running("gpt").await?;
    kept(&before, &after, 0)?;
    ensure!(job.mixed() == 0, "two attempts have met");
    let mut most = 0;
    for pod in &after {
        let supervisor = first_process(t, pod).await?;
        ensure!(
            field(supervisor, "Name")? == "lockstep-run",
            "another pid 1"
        );
        most = most.max(resident(supervisor)?);
    }
    println!("the supervisors: at most {most} bytes resident");
    ensure!(most < MOST_OF_SUPERVISOR, "{most} bytes are resident");
    Ok(())
}

/// A gang without supervisors, whose members ignore failures of peers and SIGTERM. Only the agent
/// can end them.
async fn with_its_containers(t: &Scenario<'_>) -> Result<()> {
    let job = Job::new(&t.cluster.folder().join(&t.name), "deaf", MEMBERS)?;
    let in_place = json!({"supervisor": "Never", "withoutSupervisor": "Allow"});
    let mut container = one_accelerator();
    container["command"] = json!([
        "/bin/sh",
        "-c",
        "trap '' TERM; while true; do sleep 1; done"
    ]);
    let policy = json!({"failurePolicy": {"inPlace": in_place}});
    t.create(job.manifest(policy, container)?).await?;
    let before = t.running("deaf").await?;
    kill_container(t, before.get(3).context("a fourth")?).await?;
    t.restarted("deaf", 1).await?;
    kept(&before, &t.running("deaf").await?, 1)
}

fn one_accelerator() -> Value {
    json!({"resources": {"limits": {"nvidia.com/gpu": 1}}})
}

/// Resident memory of a process in bytes.
fn resident(pid: u32) -> Result<u64> {
    let text = field(pid, "VmRSS")?;
    let kibibytes = text.strip_suffix(" kB").context("no unit")?;
    Ok(kibibytes.parse::<u64>()? * 1024)
}

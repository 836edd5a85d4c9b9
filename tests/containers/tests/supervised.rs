//! The manager with its shipped roles and configuration, agents with containerd, and the supervisor
//! that the manager adds to pods: a distributed training job on several nodes of this machine.
//! Needs root: `make test-containers`.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_api::condition::{reasons, types};
use lockstep_api::workload::{Cause, CauseKind};
use lockstep_cluster::cluster::Manager;
use lockstep_cluster::manifests::merge;
use lockstep_cluster::process::{Launch, Process};
use lockstep_cluster::scenario::{Scenario, node, restarts, scenario, uids};
use lockstep_cluster::{Cluster, Options, eventually};
use lockstep_containers::fleet::{self, LIMIT, machine_of, signal};
use lockstep_containers::job::{PORT, TRAINER, now, preempted_job_resumes};
use lockstep_containers::{Fleet, Job};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Number of members that the random test kills.
const KILLS: &str = "LOCKSTEP_KILLS";
const FEW_KILLS: u64 = 30;

/// A cluster with a manager with short back-off, so that successive failures are handled alike.
async fn cluster(name: &str) -> Result<(Cluster, Manager)> {
    // On a busy machine, the manager would lose a short lease, and nothing would start it again.
    led(name, json!({"leaderElection": null})).await
}

/// Like [`cluster`], with this lease.
async fn led(name: &str, lease: Value) -> Result<(Cluster, Manager)> {
    let mut config = json!({"workloads": {
        "healthyReset": "1s", "incidentBackoffMin": "100ms", "incidentBackoffMax": "200ms",
    }});
    merge(&mut config, lease);
    let options = Options {
        config,
        ..Options::named(name)
    };
    let cluster = Cluster::start(&options).await?;
    let manager = cluster.start_manager("a").await?;
    Ok((cluster, manager))
}

/// Nodes with agents and real containers for the duration of a test.
async fn on_nodes(
    cluster: &Cluster,
    name: &str,
    nodes: i32,
    body: impl AsyncFnOnce(&Scenario<'_>, &mut Fleet) -> Result<()>,
) -> Result<()> {
    let mut fleet = Fleet::start(cluster, name, nodes).await?;
    let shape = fleet.shape(&[]);
    scenario(cluster, name, &shape, async |t| {
        fleet.start_agents(t).await?;
        body(t, &mut fleet).await
    })
    .await
}

/// A job of two members on each of the nodes.
fn job(t: &Scenario<'_>, name: &str, nodes: usize) -> Result<Job> {
    Job::of(t, name, 2 * nodes)
}

/// In place, with an unlimited budget.
fn lasting() -> Value {
    json!({"failurePolicy": {"limits": {"maxRestarts": 100, "windowSeconds": 60}, "inPlace": {"maxTries": 100}}})
}

/// Number of SIGKILLs that the runtimes sent to each container.
fn kills(fleet: &mut Fleet) -> Result<BTreeMap<String, usize>> {
    let mut all = BTreeMap::new();
    for node in fleet.nodes() {
        all.extend(node.containerd.kills()?);
    }
    Ok(all)
}

/// Cause of the last incident, after this many restarts.
async fn cause(t: &Scenario<'_>, name: &str, restarts: i64) -> Result<Cause> {
    let status = t.restarted(name, restarts).await?;
    let entry = status.history.into_iter().next();
    Ok(entry.context("history")?.cause)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_member_brings_the_gang_back_inside_its_containers_from_the_checkpoint()
-> Result<()> {
    let (cluster, _manager) = cluster("in-place").await?;
    on_nodes(&cluster, "place", 4, async |t, _| {
        let job = job(t, "gpt", 4)?;
        t.create(job.manifest(json!({}), json!({}))?).await?;
        let before = job.trains(t, 0).await?;
        t.condition_is("gpt", types::RESTARTS_IN_PLACE, true, reasons::SUPERVISED)
            .await?;
        let (_, saved) = eventually("a checkpoint", LIMIT, async || job.checkpoint()).await?;
        let killed = now()?;
        signal(t, &before[5], Signal::KILL).await?;
        let after = job.trains(t, killed).await?;
        let cause = cause(t, "gpt", 1).await?;
        ensure!(
            cause.pod == before[5].name_any() && cause.exit_code == Some(137),
            "{cause:?}"
        );
        ensure!(uids(&before) == uids(&after), "pods were replaced");
        let version = |p: &Pod| p.metadata.resource_version.clone();
        ensure!(
            before.iter().map(version).eq(after.iter().map(version)),
            "a kubelet had something to write"
        );
        ensure!(job.step()? >= saved, "it began before its checkpoint");
        ensure!(job.mixed() == 0, "two attempts have met");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn random_kills_never_let_two_attempts_connect() -> Result<()> {
    // A short lease, so that another manager takes over quickly.
    let lease = json!({
        "leaderElection": {"leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"},
        "client": {"writeTimeout": "2s"},
    });
    let (cluster, mut manager) = led("random", lease).await?;
    let kills = match std::env::var(KILLS) {
        Ok(text) => text.parse().context(KILLS)?,
        Err(_) => FEW_KILLS,
    };
    on_nodes(&cluster, "random", 4, async |t, fleet| {
        let job = job(t, "gpt", 4)?;
        t.create(job.manifest(lasting(), json!({}))?).await?;
        let before = job.trains(t, 0).await?;
        let chance = RandomState::new();
        for round in 0..kills {
            let luck = chance.hash_one(round);
            let pick = |shift: u32, of: u64| (luck >> shift) % of;
            let victim = |shift: u32| &before[usize::try_from(pick(shift, 8)).unwrap_or(0)];
            let (first, second) = (victim(0), victim(8));
            let killed = now()?;
            signal(t, first, Signal::KILL).await?;
            // While the other members stop, wait at the barrier, or start.
            tokio::time::sleep(Duration::from_millis(pick(16, 300))).await;
            match pick(32, 4) {
                // The container can be between two processes, or already removed.
                0 => drop(signal(t, second, Signal::KILL).await),
                1 => machine_of(fleet, first)?.replace_agent()?,
                2 => machine_of(fleet, second)?.replace_agent()?,
                _ if pick(40, 4) == 0 => manager.process.kill()?,
                _ => {}
            }
            eventually("all members to step", LIMIT, async || {
                // As its Deployment does, also after a lost lease on a busy machine.
                if manager.process.ended()?.is_some() {
                    manager = cluster.start_manager(&format!("m{round}")).await?;
                }
                job.since(killed)
            })
            .await
            .with_context(|| format!("round {round} of luck {luck:x}"))?;
            let reached = t.running("gpt").await?;
            ensure!(
                uids(&reached) == uids(&before),
                "round {round} of luck {luck:x}: pods were replaced"
            );
            ensure!(job.mixed() == 0, "round {round}: two attempts have met");
        }
        let status = t.workloads().get("gpt").await?.status.context("a status")?;
        println!(
            "{} restarts, {} attempts",
            status.restarts.total, status.attempt
        );
        let bad = status.history.iter().any(|e| e.cause.exit_code == Some(99));
        ensure!(!bad, "a member has ended with 99");
        Ok(())
    })
    .await
}

/// Proves that tests would notice two attempts that meet: rank 0 of the next attempt listens where
/// a process of an old attempt looks for it.
#[tokio::test(flavor = "multi_thread")]
async fn two_attempts_that_meet_are_noticed() -> Result<()> {
    let (cluster, _manager) = cluster("noticed").await?;
    on_nodes(&cluster, "noticed", 1, async |t, _| {
        let job = job(t, "gpt", 1)?;
        // So that the straggler connects first.
        let slow = "[ $PET_NODE_RANK = 0 ] || sleep 1; exec /usr/bin/lockstep-trainer";
        let slow = json!({"command": ["/bin/sh", "-c", slow]});
        t.create(job.manifest(lasting(), slow)?).await?;
        let before = job.trains(t, 0).await?;
        let status = before[0].status.as_ref();
        let leader = status.and_then(|s| s.pod_ip.clone()).context("an IP")?;
        // Rank 1 of attempt 1, not under a supervisor.
        let _straggler = Process::start(&straggler(&job, &leader)?, t.cluster.folder())?;
        let killed = now()?;
        signal(t, &before[1], Signal::KILL).await?;
        eventually("the two attempts to be noticed", LIMIT, async || {
            ensure!(job.mixed() > 0, "{:?}", job.since(killed));
            Ok(())
        })
        .await
    })
    .await
}

fn straggler(job: &Job, leader: &str) -> Result<Launch> {
    let folder = job.folder().display().to_string();
    let env = [
        ("PET_NODE_RANK", "1"),
        ("PET_NNODES", "2"),
        ("LOCKSTEP_ATTEMPT", "1"),
        ("MASTER_ADDR", leader),
        ("MASTER_PORT", &PORT.to_string()),
        ("CHECKPOINT_DIR", &folder),
    ];
    let owned = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(Launch {
        name: "straggler".into(),
        program: fleet::static_program(TRAINER)?,
        args: Vec::new(),
        env: Some(owned.into()),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_causes_of_a_member_exit_are_distinguished() -> Result<()> {
    let (cluster, _manager) = cluster("causes").await?;
    on_nodes(&cluster, "causes", 2, async |t, _| {
        let job = job(t, "gpt", 2)?;
        let limited = json!({"resources": {"limits": {"nvidia.com/gpu": 4, "memory": "64Mi"}}});
        t.create(job.manifest(lasting(), limited)?).await?;
        let pods = job.trains(t, 0).await?;

        let told = now()?;
        job.command(1, "exit 42")?;
        job.trains(t, told).await?;
        let exit = cause(t, "gpt", 1).await?;
        ensure!(
            exit.exit_code == Some(42) && exit.pod == pods[1].name_any(),
            "{exit:?}"
        );

        // More than the memory limit of its cgroup.
        let told = now()?;
        job.command(2, "leak")?;
        job.trains(t, told).await?;
        let oom = cause(t, "gpt", 2).await?;
        ensure!(
            oom.reason == "OOMKilled" && oom.pod == pods[2].name_any(),
            "{oom:?}"
        );

        // Without progress reports: the peers give up after 30 s without data, and their failure
        // restarts the stopped member too.
        let told = now()?;
        signal(t, &pods[3], Signal::STOP).await?;
        let again = job.trains(t, told).await?;
        let hang = cause(t, "gpt", 3).await?;
        ensure!(
            hang.exit_code == Some(1) && hang.pod != pods[3].name_any(),
            "{hang:?}"
        );
        ensure!(uids(&pods) == uids(&again), "pods were replaced");
        ensure!(job.mixed() == 0, "two attempts have met");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_stopped_hangs_and_all_come_back_inside_their_containers() -> Result<()> {
    let (cluster, _manager) = cluster("hang").await?;
    on_nodes(&cluster, "hang", 2, async |t, _| {
        let job = job(t, "gpt", 2)?;
        let mut spec = lasting();
        // Shorter than the time-out of the peers.
        spec["failurePolicy"]["progress"] = json!({"timeoutSeconds": 10, "startupSeconds": 20});
        t.create(job.manifest(spec, json!({}))?).await?;
        let before = job.trains(t, 0).await?;
        let stopped = now()?;
        signal(t, &before[3], Signal::STOP).await?;
        let after = job.trains(t, stopped).await?;
        let hang = cause(t, "gpt", 1).await?;
        // All members wait for the stopped member. Which hang is reported first is random.
        ensure!(
            hang.kind == CauseKind::Hang && hang.exit_code.is_none(),
            "{hang:?}"
        );
        ensure!(uids(&before) == uids(&after), "pods were replaced");
        ensure!(
            after.iter().all(|p| restarts(p) == 0),
            "containers were restarted"
        );
        ensure!(job.mixed() == 0, "two attempts have met");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_silent_node_move_and_other_members_restart_in_their_containers() -> Result<()>
{
    let (cluster, _manager) = cluster("silent").await?;
    let mut fleet = Fleet::start(&cluster, "silent", 3).await?;
    let shape = fleet.shape(&["--lease-seconds=8", "--renew-seconds=1"]);
    scenario(&cluster, "silent", &shape, async |t| {
        fleet.start_agents(t).await?;
        let job = job(t, "gpt", 2)?;
        let mut spec = lasting();
        spec["failurePolicy"]["nodeLostSeconds"] = json!(1);
        t.create(job.manifest(spec, json!({}))?).await?;
        let before = job.trains(t, 0).await?;
        let (_, saved) = eventually("a checkpoint", LIMIT, async || job.checkpoint()).await?;
        // The other members would look for the moved rank 0 at the old address.
        let mut nodes = before.iter().map(node);
        let lost = nodes.find(|name| *name != node(&before[0]));
        let lost = lost.context("all members are on one node")?;
        let silent = now()?;
        fleet.lose(t, &lost, &before).await?;
        let after = job.trains(t, silent).await?;
        let cause = cause(t, "gpt", 1).await?;
        ensure!(
            cause.kind == CauseKind::NodeLost && cause.node == lost,
            "{cause:?}"
        );
        for (old, new) in before.iter().zip(&after) {
            let kept = old.uid() == new.uid();
            ensure!(kept == (node(old) != lost), "{}: {kept}", old.name_any());
            ensure!(node(new) != lost && restarts(new) == 0, "{new:?}");
        }
        ensure!(job.begun_at()? >= saved, "it began before its checkpoint");
        ensure!(job.mixed() == 0, "two attempts have met");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_exist_fails_the_workload_with_its_reason() -> Result<()> {
    let (cluster, _manager) = cluster("missing").await?;
    on_nodes(&cluster, "missing", 1, async |t, _| {
        let job = job(t, "typo", 1)?;
        let spec = json!({"failurePolicy": {"limits": {"maxRestarts": 1}}});
        let missing = json!({"command": ["/usr/bin/trian"]});
        t.create(job.manifest(spec, missing)?).await?;
        t.condition("typo", types::FAILED).await?;
        let status = t
            .workloads()
            .get("typo")
            .await?
            .status
            .context("a status")?;
        let cause = &status.history.first().context("history")?.cause;
        ensure!(
            cause.exit_code == Some(127) && cause.reason == "StartError",
            "{cause:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preempted_job_saves_a_checkpoint_and_resumes_from_it() -> Result<()> {
    let (cluster, _manager) = cluster("preempted").await?;
    on_nodes(&cluster, "preempted", 2, async |t, _| {
        preempted_job_resumes(t, 4, 4).await.map(drop)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_killed_during_a_restart_does_not_block_it_permanently() -> Result<()> {
    let (cluster, _manager) = cluster("runtime").await?;
    on_nodes(&cluster, "runtime", 2, async |t, fleet| {
        let job = job(t, "gpt", 2)?;
        t.create(job.manifest(lasting(), json!({}))?).await?;
        let before = job.trains(t, 0).await?;
        let killed = now()?;
        let machine = machine_of(fleet, &before[0])?;
        machine.containerd.kill()?;
        signal(t, &before[0], Signal::KILL).await?;
        machine.containerd.restart().await?;
        let after = job.trains(t, killed).await?;
        ensure!(uids(&before) == uids(&after), "pods were replaced");
        ensure!(
            after.iter().all(|p| restarts(p) == 0),
            "containers were restarted"
        );
        let kills = kills(fleet)?;
        ensure!(kills.is_empty(), "runtimes have killed {kills:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_is_killed_before_it_has_stopped_its_members_stops_each_once() -> Result<()>
{
    let (cluster, _manager) = cluster("once").await?;
    on_nodes(&cluster, "once", 2, async |t, fleet| {
        let job = job(t, "gpt", 2)?;
        let mut spec = lasting();
        spec["failurePolicy"]["inPlace"] =
            json!({"maxTries": 100, "supervisor": "Never", "withoutSupervisor": "Allow"});
        t.create(job.manifest(spec, json!({}))?).await?;
        let before = job.trains(t, 0).await?;
        let other = before
            .iter()
            .find(|p| node(p) != node(&before[0]))
            .context("a member of another node")?;
        let killed = now()?;
        let machine = machine_of(fleet, other)?;
        machine.containerd.kill()?;
        signal(t, &before[0], Signal::KILL).await?;
        t.workload("gpt", "to restart", |w| {
            let attempt = w.status.as_ref().map_or(0, |s| s.attempt);
            ensure!(attempt == 2, "attempt {attempt}");
            Ok(())
        })
        .await?;
        machine.containerd.restart().await?;
        let after = job.trains(t, killed).await?;
        ensure!(uids(&before) == uids(&after), "pods were replaced");
        ensure!(
            after.iter().all(|p| restarts(p) == 1),
            "containers were restarted {:?} times",
            after.iter().map(restarts).collect::<Vec<_>>()
        );
        // Members that have ended by then are not killed.
        let kills = kills(fleet)?;
        ensure!(
            !kills.is_empty() && kills.values().all(|times| *times == 1),
            "runtimes have killed {kills:?}"
        );
        Ok(())
    })
    .await
}

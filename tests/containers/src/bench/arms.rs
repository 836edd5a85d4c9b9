//! The ways of restarting that are compared, and one round of each.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use lockstep_api::workload::HistoryEntry;
use lockstep_cluster::scenario::{Scenario, scenario};
use lockstep_cluster::{Cluster, eventually};
use lockstep_containers::fleet::{LIMIT, signal};
use lockstep_containers::job::now;
use lockstep_containers::{Fleet, Job};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::figures::Round;

const NODES: i32 = 4;
const MEMBERS: usize = 8;
/// Longer than the manager takes to forget an incident, and than an agent remembers that it had much
/// to tell: failures are hours apart.
const CALM: Duration = Duration::from_secs(11);

/// A way of restarting.
#[derive(Clone, Copy, Debug)]
pub struct Arm {
    /// As in the table.
    pub name: &'static str,
    /// Arguments of the nodes.
    nodes: &'static [&'static str],
    policy: Policy,
    /// Whether every round has pods of its own: the kubelet remembers how often a container ended.
    fresh: bool,
}

#[derive(Clone, Copy, Debug)]
enum Policy {
    /// As users get it.
    Default,
    /// No supervisor, in place all the same.
    Containers,
    /// New pods.
    Recreate,
}

/// All of them; the last is what the others are compared with.
pub const ARMS: [Arm; 5] = [
    Arm {
        name: "supervised",
        nodes: &[],
        policy: Policy::Default,
        fresh: false,
    },
    Arm {
        name: "restart-all",
        nodes: &[],
        policy: Policy::Containers,
        fresh: false,
    },
    Arm {
        name: "restart-rules",
        nodes: &["--no-restart-all=*"],
        policy: Policy::Containers,
        fresh: true,
    },
    Arm {
        name: "plain",
        nodes: &["--kubelet-version=v1.34.2"],
        policy: Policy::Containers,
        fresh: true,
    },
    Arm {
        name: "recreate",
        nodes: &[],
        policy: Policy::Recreate,
        fresh: false,
    },
];

/// What an arm gave.
pub struct Measured {
    /// Its rounds.
    pub rounds: Vec<Round>,
    /// How often members of two attempts have met.
    pub mixed: usize,
}

/// All rounds of an arm, on nodes of their own.
pub async fn run(cluster: &Cluster, arm: &Arm, rounds: usize) -> Result<Measured> {
    let mut fleet = Fleet::start(cluster, arm.name, NODES).await?;
    let shape = fleet.shape(arm.nodes);
    let mut outcome = Measured {
        rounds: Vec::new(),
        mixed: 0,
    };
    scenario(cluster, arm.name, &shape, async |t| {
        fleet.start_agents(t).await?;
        let mut job = None;
        for number in 0..rounds {
            let mut current = match job.take() {
                Some(job) => job,
                None => begin(t, arm, number).await?,
            };
            let round = round(t, &mut current).await?;
            eprintln!("{} {}: {round:?}", arm.name, number + 1);
            outcome.rounds.push(round);
            if arm.fresh || number + 1 == rounds {
                outcome.mixed += current.job.mixed();
                end(t, &current).await?;
            } else {
                job = Some(current);
            }
        }
        Ok(())
    })
    .await?;
    Ok(outcome)
}

/// A job that trains.
struct Training {
    name: String,
    job: Job,
    restarts: i64,
}

async fn begin(t: &Scenario<'_>, arm: &Arm, number: usize) -> Result<Training> {
    let name = format!("job{number}");
    let job = Job::new(&t.cluster.folder().join(&t.name), &name, MEMBERS)?;
    t.create(job.manifest(spec(arm.policy), json!({}))?).await?;
    eventually("all members to step", LIMIT, async || job.since(0)).await?;
    let restarts = 0;
    Ok(Training {
        name,
        job,
        restarts,
    })
}

/// Deletes the job and waits until nothing of it is left.
async fn end(t: &Scenario<'_>, training: &Training) -> Result<()> {
    let api = t.workloads();
    api.delete(&training.name, &DeleteParams::default()).await?;
    eventually("the pods to be gone", LIMIT, async || {
        let left = t.all_pods().list(&kube::api::ListParams::default()).await?;
        ensure!(left.items.is_empty(), "{} pods", left.items.len());
        Ok(())
    })
    .await
}

fn spec(policy: Policy) -> Value {
    let limits = json!({"maxRestarts": 100, "windowSeconds": 60});
    let in_place = match policy {
        Policy::Default | Policy::Recreate => json!({"maxTries": 100}),
        Policy::Containers => {
            json!({"maxTries": 100, "supervisor": "Never", "withoutSupervisor": "Allow"})
        }
    };
    let rules = match policy {
        Policy::Default | Policy::Containers => json!([]),
        Policy::Recreate => json!([{
            "name": "any", "action": "RecreateGang",
            "match": {"exitCodes": {"operator": "In", "values": [1, 137]}},
        }]),
    };
    json!({"failurePolicy": {"limits": limits, "inPlace": in_place, "rules": rules}})
}

/// Kills a member and waits until all step again and the incident is closed.
async fn round(t: &Scenario<'_>, training: &mut Training) -> Result<Round> {
    let pods = t.running(&training.name).await?;
    tokio::time::sleep(CALM).await;
    let hash = RandomState::new().hash_one(training.restarts);
    let victim = usize::try_from(hash % pods.len() as u64)?;
    let pod = pods.get(victim).context("a member")?;
    let killed = now()?;
    signal(t, pod, Signal::KILL).await?;
    let reached = eventually("all members to step again", LIMIT, async || {
        training.job.since(killed)
    })
    .await?;
    let known = training.restarts;
    let status = eventually("the incident to be over", LIMIT, async || {
        let status = t.workloads().get(&training.name).await?.status;
        let status = status.context("a status")?;
        ensure!(status.restarts.total > known, "no restart yet");
        ensure!(
            status.domains.iter().all(|d| d.incident.is_none()),
            "an incident is open"
        );
        Ok(status)
    })
    .await?;
    let incidents = usize::try_from(status.restarts.total - known)?;
    training.restarts = status.restarts.total;
    let entry: &HistoryEntry = status.history.first().context("history")?;
    Ok(Round::new(killed, reached, incidents, entry))
}

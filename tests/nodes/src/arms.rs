//! Ways of restarting to compare, and a round of each.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use lockstep_api::condition::{self, types};
use lockstep_cluster::eventually;
use lockstep_cluster::scenario::Scenario;
use lockstep_containers::Job;
use lockstep_containers::job::now;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::RealCluster;
use crate::figures::Round;
use crate::real_cluster::LIMIT;

/// Pause between failures, which are hours apart in practice. After it, agents report events
/// without delay again.
pub const CALM: Duration = Duration::from_secs(11);

/// A way of restarting.
#[derive(Clone, Copy, Debug)]
pub struct Arm {
    /// Name in the table.
    pub name: &'static str,
    policy: Policy,
}

#[derive(Clone, Copy, Debug)]
enum Policy {
    /// Default of the product.
    Default,
    /// In place, by the kubelets.
    Containers,
    /// With new pods.
    Recreate,
}

/// All ways of restarting. Each is compared with the last.
pub const ARMS: [Arm; 3] = [
    Arm {
        name: "supervised",
        policy: Policy::Default,
    },
    Arm {
        name: "restart-all",
        policy: Policy::Containers,
    },
    Arm {
        name: "recreate",
        policy: Policy::Recreate,
    },
];

/// A round on a new workload. Also returns how often two attempts met.
pub async fn round(
    real: &RealCluster,
    t: &Scenario<'_>,
    arm: &Arm,
    name: &str,
) -> Result<(Round, usize)> {
    let job = Job::of(t, name, real.members())?;
    t.create(job.manifest(spec(arm.policy), json!({}))?).await?;
    let pods = job.trains(t, 0).await?;
    let start = place_to_ready(t, name).await?;
    tokio::time::sleep(CALM).await;
    let victim = usize::try_from(RandomState::new().hash_one(name) % pods.len() as u64)?;
    let victim: &Pod = pods.get(victim).context("a member")?;
    let killed = now()?;
    real.signal(victim, Signal::KILL)?;
    let reached = eventually("all members to step again", LIMIT, async || {
        job.since(killed)
    })
    .await?;
    let status = t.restarted(name, 1).await?;
    let entry = status.history.first().context("history")?;
    let round = Round::new(start, killed, reached, entry);
    let workloads = t.workloads();
    workloads.delete(name, &DeleteParams::default()).await?;
    eventually("the pods to be gone", LIMIT, async || {
        let left = t.all_pods().list(&ListParams::default()).await?;
        ensure!(left.items.is_empty(), "{} pods", left.items.len());
        Ok(())
    })
    .await?;
    Ok((round, job.mixed()))
}

/// Time from the placement of a workload until condition Ready.
pub async fn place_to_ready(t: &Scenario<'_>, name: &str) -> Result<TimeDelta> {
    let workload = t.workloads().get(name).await?;
    let status = workload.status.context("a status")?;
    let ready = condition::find(&status.conditions, types::READY).context("condition Ready")?;
    let placed = status.scheduled_time.context("the time of placement")?;
    Ok(ready.last_transition_time - placed)
}

fn spec(policy: Policy) -> Value {
    let in_place = match policy {
        Policy::Default | Policy::Recreate => json!({}),
        Policy::Containers => json!({"supervisor": "Never", "withoutSupervisor": "Allow"}),
    };
    let rules = match policy {
        Policy::Default | Policy::Containers => json!([]),
        Policy::Recreate => json!([{
            "name": "any", "action": "RecreateGang",
            "match": {"exitCodes": {"operator": "In", "values": [1, 137]}},
        }]),
    };
    json!({"failurePolicy": {"inPlace": in_place, "rules": rules}})
}

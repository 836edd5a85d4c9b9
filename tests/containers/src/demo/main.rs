//! Restarts on real containers, to look at: `make demo-containers`. Eight members train on four nodes
//! of this machine; one after the other is killed, told to exit, and given less memory than it takes.
//! Each time all go on from the last checkpoint, in the same containers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_cluster::scenario::{Scenario, node, restarts, scenario, uids};
use lockstep_cluster::{Cluster, Options, eventually};
use lockstep_containers::fleet::{LIMIT, signal};
use lockstep_containers::job::now;
use lockstep_containers::{Fleet, Job};
use rustix::process::Signal;
use serde_json::json;

const NODES: i32 = 4;
const MEMBERS: usize = 8;
/// Longer than an agent remembers that it had much to tell.
const CALM: Duration = Duration::from_secs(11);

#[tokio::main]
async fn main() -> Result<()> {
    println!(
        "starting an API server, the manager, and four nodes with containerd and an agent each"
    );
    let options = Options {
        config: json!({"workloads": {"healthyReset": "1s"}, "leaderElection": null}),
        ..Options::named("demo")
    };
    let cluster = Cluster::start(&options).await?;
    let _manager = cluster.start_manager("a").await?;
    let mut fleet = Fleet::start(&cluster, "demo", NODES).await?;
    let shape = fleet.shape(&[]);
    scenario(&cluster, "demo", &shape, async |t| {
        fleet.start_agents(t).await?;
        let job = Job::new(&t.cluster.folder().join(&t.name), "gpt", MEMBERS)?;
        let limited = json!({"resources": {"limits": {"nvidia.com/gpu": 4, "memory": "64Mi"}}});
        t.create(job.manifest(json!({}), limited)?).await?;
        eventually("all members to step", LIMIT, async || job.since(0)).await?;
        let show = Show { t, job: &job };
        show.members().await?;
        show.act("kill -9 of a member", 2, async |pod| {
            signal(t, pod, Signal::KILL).await
        })
        .await?;
        show.act("a member exits with 42", 5, async |_| {
            job.command(5, "exit 42")
        })
        .await?;
        show.act("a member takes more memory than its limit", 7, async |_| {
            job.command(7, "leak")
        })
        .await?;
        println!("members of two attempts have met {} times", job.mixed());
        Ok(())
    })
    .await
}

struct Show<'a> {
    t: &'a Scenario<'a>,
    job: &'a Job,
}

impl Show<'_> {
    async fn members(&self) -> Result<()> {
        println!("\ngpt trains, one container for each member:");
        for pod in self.t.running("gpt").await? {
            println!("  {}  {}", node(&pod), pod.name_any());
        }
        Ok(())
    }

    /// Something happens to a member; prints what became of all.
    async fn act(
        &self,
        title: &str,
        rank: usize,
        trouble: impl AsyncFnOnce(&Pod) -> Result<()>,
    ) -> Result<()> {
        tokio::time::sleep(CALM).await;
        let before = self.t.running("gpt").await?;
        let known = self.restarts_so_far().await?;
        let (_, saved) = self.job.checkpoint()?;
        println!("\n== {title}: {}", before[rank].name_any());
        println!("   step {}, last checkpoint {saved}", self.job.step()?);
        let at = now()?;
        trouble(&before[rank]).await?;
        let reached = eventually("all to step again", LIMIT, async || self.job.since(at)).await?;
        let status = self.t.restarted("gpt", known + 1).await?;
        let after = self.t.running("gpt").await?;
        ensure!(uids(&before) == uids(&after), "pods were replaced");
        let count: i32 = after.iter().map(restarts).sum();
        let entry = status.history.first().context("history")?;
        let (cause, p) = (&entry.cause, &entry.phases);
        println!(
            "   {:?}, exit code {:?}, reason {}: attempt {}",
            cause.kind, cause.exit_code, cause.reason, entry.attempt
        );
        println!(
            "   detect {} ms, decide {} ms, stop {} ms, barrier {} ms, start {} ms, meet {} ms, first step {} ms",
            p.detect_ms,
            p.decide_ms,
            p.stop_ms,
            p.barrier_ms,
            p.start_ms,
            (reached.met - reached.started) / 1000,
            (reached.stepped - reached.met) / 1000
        );
        println!(
            "   all {MEMBERS} step again after {} ms, at step {}; same pods, {count} container restarts",
            (reached.stepped - at) / 1000,
            self.job.step()?
        );
        Ok(())
    }

    async fn restarts_so_far(&self) -> Result<i64> {
        let workload = self.t.workloads().get("gpt").await?;
        Ok(workload.status.context("a status")?.restarts.total)
    }
}

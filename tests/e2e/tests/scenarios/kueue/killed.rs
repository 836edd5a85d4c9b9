//! Manager and Kueue are killed again and again.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::ListParams;
use lockstep_api::TrainingWorkload;
use lockstep_api::workload::Phase;
use lockstep_cluster::cluster::Manager;
use lockstep_cluster::kueue::Kueue;
use lockstep_cluster::scenario::PATIENCE;
use lockstep_cluster::{Cluster, eventually};
use lockstep_e2e::number;
use serde_json::json;

use super::{has, on_kueue, queued};

/// Numbers that look random, from a seed that the test prints.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    async fn pause(&mut self, milliseconds: u64) {
        tokio::time::sleep(Duration::from_millis(self.below(milliseconds))).await;
    }
}

/// Kills manager and Kueue again and again. Dropping the future leaves either dead.
async fn killer(
    cluster: &Cluster,
    (manager, kueue): (&mut Manager, &mut Kueue<'_>),
    random: &mut Random,
    kills: &mut [usize; 2],
) -> Result<Infallible> {
    loop {
        random.pause(8000).await;
        let who = random.below(3);
        if who != 0 {
            kueue.kill()?;
            kills[1] += 1;
        }
        if who != 1 {
            manager.process.kill()?;
            kills[0] += 1;
        }
        random.pause(3000).await;
        if who != 1 {
            *manager = cluster.start_manager("a").await?;
        }
        random.pause(1000).await;
        if who != 0 {
            kueue.restart().await?;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-kueue"]
async fn no_gang_is_lost_or_admitted_twice_while_manager_and_kueue_are_killed() -> Result<()> {
    let gangs: usize = number("LOCKSTEP_KUEUE_GANGS", 200)?;
    let seed = number("LOCKSTEP_KUEUE_SEED", u64::from(std::process::id()))?;
    eprintln!("LOCKSTEP_KUEUE_SEED={seed}");
    let quick = json!({"leaderElection": {"leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"}});
    on_kueue("kueue-killed", 16, quick, async |s, t| {
        let mut random = Random(seed);
        for i in 0..gangs {
            let members = if random.below(4) == 0 { 2 } else { 1 };
            let mut gang = queued(&format!("g{i}"), members, json!({}));
            let template = &mut gang["spec"]["groups"][0]["template"]["spec"];
            template["terminationGracePeriodSeconds"] = json!(1);
            template["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": 1}});
            template["containers"][0]["env"] = json!([{"name": "HOLLOW_RUN_MILLIS", "value": "1500"}]);
            t.create(gang).await?;
        }
        let mut kills = [0, 0];
        let all = Duration::from_secs(120 + 4 * u64::try_from(gangs)?);
        let ended = eventually("all gangs to end", all, async || {
            let all = t.workloads().list(&ListParams::default()).await?.items;
            let phase = |w: &TrainingWorkload| w.status.as_ref().and_then(|s| s.phase);
            let failed: Vec<_> = all.iter().filter(|w| phase(w) == Some(Phase::Failed)).collect();
            if !failed.is_empty() {
                return Ok(Err(anyhow::anyhow!("failed: {failed:?}")));
            }
            if let Err(wrong) = s.usage.within() {
                return Ok(Err(wrong));
            }
            let ended = all.iter().filter(|w| phase(w) == Some(Phase::Succeeded)).count();
            ensure!(ended == gangs, "{ended} of {gangs}");
            Ok(Ok(all))
        });
        let all = tokio::select! {
            ended = ended => ended??,
            never = killer(s.cluster, (&mut s.manager, &mut s.kueue), &mut random, &mut kills) => match never? {},
        };
        eprintln!("managers killed: {}, Kueues: {}", kills[0], kills[1]);
        s.kueue.kill()?;
        s.kueue.restart().await?;
        s.manager.process.kill()?;
        s.manager = s.cluster.start_manager("a").await?;
        for workload in &all {
            let name = workload.name_any();
            has(t, &name, "Finished").await?;
            let admissions = s.usage.admissions(&workload.uid().context("a UID")?);
            let status = workload.status.as_ref().context("a status")?;
            ensure!(
                admissions == 1 && status.attempt == 1 && status.restarts.total == 0,
                "{name} was admitted {admissions} times: {status:?}"
            );
        }
        s.usage.ends(PATIENCE).await
    })
    .await
}

//! Configuration that the manager applies while it runs.

use anyhow::{Result, ensure};
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::cluster::Manager;
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::PATIENCE;
use lockstep_cluster::{Cluster, eventually, scenario};
use lockstep_e2e::{IN_TURN, patient};
use serde_json::json;

use crate::preemption::{evicted_and_spared, nobody_left, two_low};

/// Turns preemption on or off in the ConfigMap, and waits until the manager has applied the change.
async fn preemption(cluster: &Cluster, manager: &Manager, enabled: bool) -> Result<()> {
    let change = json!({"scheduler": {"preemption": {"enabled": enabled}}});
    cluster.reconfigure("live", change).await?;
    eventually("the manager to take it over", PATIENCE, async || {
        let log = manager.process.log_tail(1000);
        let mut changes = log
            .lines()
            .filter(|l| l.contains("scheduler.preemption.enabled has changed"));
        let last = changes.next_back().unwrap_or_default();
        ensure!(last.contains(&enabled.to_string()), "{last}");
        Ok(())
    })
    .await
}

/// The log level changes with the ConfigMap too, and an invalid level changes nothing.
async fn more_is_logged(cluster: &Cluster, manager: &Manager) -> Result<()> {
    for (level, expected) in [
        ("verbose", "must be off, error, warn, info, debug or trace"),
        ("debug", "DEBUG"),
    ] {
        let log = manager.process.log_tail(1000);
        ensure!(!log.contains(expected), "before {level}: {log}");
        cluster
            .reconfigure("live", json!({"logLevel": level}))
            .await?;
        eventually("the log to tell of it", PATIENCE, async || {
            let log = manager.process.log_tail(1000);
            ensure!(log.contains(expected), "{level}: {log}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn preemption_stops_and_resumes_at_once_with_the_setting_in_the_config_map() -> Result<()> {
    IN_TURN
        .run("a manager of our own", patient(), stops_and_resumes)
        .await
}

async fn stops_and_resumes(cluster: &mut Cluster) -> Result<()> {
    let cluster = &*cluster;
    let manager = cluster.start_manager("live").await?;
    scenario(cluster, "live", &Shape::default(), async |t| {
        let before = two_low(t).await?;
        preemption(cluster, &manager, false).await?;
        t.create(gang("vip", 2, 8, json!({"priorityClassName": "high"})))
            .await?;
        let said = t
            .condition_is("vip", types::ADMITTED, false, reasons::UNSCHEDULABLE)
            .await?;
        let key = "preemption is disabled (scheduler.preemption.enabled)";
        ensure!(said.contains(key), "{said}");
        t.no_pods("vip").await?;
        nobody_left(t, &before).await?;
        preemption(cluster, &manager, true).await?;
        t.running("vip").await?;
        evicted_and_spared(t, &before).await?;
        more_is_logged(cluster, &manager).await
    })
    .await?;
    manager.process.terminate(PATIENCE).await.map(drop)
}

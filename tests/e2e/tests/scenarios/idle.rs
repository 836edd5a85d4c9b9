//! In a cluster without events, nothing is written.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_api::condition::{reasons, types};
use lockstep_api::workload::Phase;
use lockstep_cluster::audit::{self, Write};
use lockstep_cluster::install;
use lockstep_cluster::manifests::{gang, group};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::Scenario;
use lockstep_e2e::{fresh, number, patient};
use serde_json::json;

/// Time without writes after which the cluster counts as settled.
const SETTLED: Duration = Duration::from_secs(5);

/// Workloads in all stable states.
async fn still_life(t: &Scenario<'_>) -> Result<()> {
    let fatal = json!({"failurePolicy": {"rules": [
        {"name": "fatal", "match": {"exitCodes": {"operator": "In", "values": [2]}}, "action": "FailWorkload"}]}});
    for (name, spec, code) in [("complete", json!({}), 0), ("failed", fatal, 2)] {
        t.create(gang(name, 1, 8, spec)).await?;
        let pods = t.running(name).await?;
        t.exit(pods.first().context("a pod")?, code).await?;
    }
    t.condition("complete", types::COMPLETE).await?;
    t.condition("failed", types::FAILED).await?;

    t.create(gang("victim", 2, 8, json!({"priorityClassName": "low"})))
        .await?;
    t.running("victim").await?;
    t.create(gang("suspended", 1, 8, json!({"suspend": true})))
        .await?;
    t.condition("suspended", types::SUSPENDED).await?;
    t.create(gang(
        "stalled",
        1,
        8,
        json!({"priorityClassName": "no-such-class"}),
    ))
    .await?;
    t.condition("stalled", types::STALLED).await?;

    let mut second = group("second", 1, 1);
    second["dependsOn"] = json!([{"group": "first", "condition": "Succeeded"}]);
    let depending = json!({"groups": [group("first", 1, 1), second], "scheduling": {"gang": {"scope": "Group"}},
        "priorityClassName": "high"});
    t.create(gang("depending", 0, 0, depending)).await?;
    t.create(gang(
        "basic",
        1,
        4,
        json!({"scheduling": {"policy": "Basic"}, "priorityClassName": "high"}),
    ))
    .await?;
    t.running("basic").await?;

    // One of the four nodes is left: the victim is evicted and has no nodes to return to.
    t.create(gang("running", 2, 8, json!({"priorityClassName": "high"})))
        .await?;
    let pods = t.running("running").await?;
    t.exit(pods.first().context("a pod")?, 3).await?;
    t.restarted("running", 1).await?;
    t.workload("victim", "to wait again", |w| {
        let status = w.status.as_ref().context("status")?;
        ensure!(
            status.phase == Some(Phase::Pending) && status.preemptions == 1,
            "{status:?}"
        );
        Ok(())
    })
    .await?;
    t.create(gang("waiting", 4, 8, json!({}))).await?;
    t.condition_is("waiting", types::ADMITTED, false, reasons::UNSCHEDULABLE)
        .await
        .map(drop)
}

/// Writes of Lockstep, without the lease and the test of the admission policies.
fn written(t: &Scenario<'_>) -> Result<Vec<Write>> {
    let (of_manager, of_agents) = (
        t.cluster.audit.writes_by(audit::MANAGER)?,
        t.cluster.audit.writes_by(audit::AGENT)?,
    );
    Ok(of_manager
        .into_iter()
        .chain(of_agents)
        .filter(|w| w.resource != "leases" && !is_self_test(w))
        .collect())
}

fn is_self_test(write: &Write) -> bool {
    write.dry_run && write.namespace == install::MANAGER.0
}

#[tokio::test(flavor = "multi_thread")]
async fn settled_workloads_of_every_kind_cause_no_write() -> Result<()> {
    // The periodic pass over all objects runs about ten times in this time.
    let mut config = patient();
    config["resyncPeriod"] = json!("5s");
    let cluster = fresh("idle", config).await?;
    if !cluster.has_nodes("idle") {
        return Ok(());
    }
    let _manager = cluster.start_manager("a").await?;
    scenario(&cluster, "idle", &Shape::default(), async |t| {
        still_life(t).await?;
        let mut before = written(t)?.len();
        loop {
            tokio::time::sleep(SETTLED).await;
            let now = written(t)?.len();
            if now == std::mem::replace(&mut before, now) {
                break;
            }
        }
        tokio::time::sleep(Duration::from_secs(number("LOCKSTEP_SILENCE_SECONDS", 60)?)).await;
        let mut writes: BTreeMap<String, usize> = BTreeMap::new();
        for w in written(t)?.split_off(before) {
            *writes
                .entry(format!(
                    "{} {} {}/{}: {}",
                    w.verb,
                    w.target(),
                    w.namespace,
                    w.name,
                    w.code
                ))
                .or_default() += 1;
        }
        ensure!(writes.is_empty(), "{writes:#?}");
        Ok(())
    })
    .await
}

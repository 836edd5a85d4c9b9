//! An idle cluster whose nodes refresh their conditions, as node-problem-detector does every five
//! minutes.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use lockstep_api::node_signal::{BUILT_IN, SignalMatch};
use lockstep_cluster::{http, time_of_day};
use serde_json::{Value, json};
use tokio::time::{Instant, interval};

use crate::arms::{Bench, supervised};
use crate::machine::taken;

/// Each node is refreshed once in this time.
const PERIOD: Duration = Duration::from_mins(5);
const CONDITIONS: usize = 20;
/// Cycles of the scheduler, by kind and result.
const CYCLES: &str = "lockstep_scheduler_cycle_seconds_count";

impl Bench<'_> {
    /// A gang runs on all nodes. Time passes without refreshed conditions, and then with them.
    pub async fn heartbeats(&mut self) -> Result<()> {
        self.create("create", "idle", supervised()).await?;
        let nodes: Api<Node> = Api::all(self.t.client.clone());
        let all = nodes.list(&ListParams::default()).await?;
        let own = all.iter().map(ResourceExt::name_any);
        let names: Vec<String> = own.filter(|n| n.starts_with(&self.t.name)).collect();
        self.idle("idle", &nodes, &[]).await?;
        for name in &names {
            refresh(&nodes, name).await?;
        }
        let arm = format!("idle, {CONDITIONS} conditions of each node refreshed");
        self.idle(&arm, &nodes, &names).await?;
        self.gone("idle").await
    }

    async fn idle(&mut self, arm: &str, nodes: &Api<Node>, refreshed: &[String]) -> Result<()> {
        self.record.skip().await?;
        let process = self.record.manager.process.id();
        let (cpu, cycles) = (taken(process)?.cpu, self.cycles().await?);
        let begun = Instant::now();
        if !refreshed.is_empty() {
            let mut turns = interval(PERIOD / u32::try_from(refreshed.len())?);
            for name in refreshed {
                turns.tick().await;
                refresh(nodes, name).await?;
            }
        }
        tokio::time::sleep(PERIOD.saturating_sub(begun.elapsed())).await;
        let (cpu, cycles) = (taken(process)?.cpu - cpu, self.cycles().await? - cycles);
        self.note(arm, begun.elapsed()).await?;
        let writes = self.record.writes_of_last_round("manager");
        println!("    manager: {cpu:.1} s of CPU, {cycles} scheduling cycles, {writes} writes");
        ensure!(writes == 0, "the manager of an idle cluster writes");
        Ok(())
    }

    async fn cycles(&self) -> Result<u64> {
        let text = http::get(&self.record.manager.metrics, "/metrics").await?;
        let lines = text.lines().filter(|line| line.starts_with(CYCLES));
        let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        Ok(counts.sum())
    }
}

/// Reports conditions that the built-in rules read, all healthy, with a new heartbeat.
async fn refresh(nodes: &Api<Node>, node: &str) -> Result<()> {
    let conditions = BUILT_IN.iter().filter_map(|rule| match &rule.matches {
        SignalMatch::Condition(bad) if bad.status == "True" => Some(&bad.type_),
        _ => None,
    });
    let now = time_of_day().to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    let healthy = |type_| json!({"type": type_, "status": "False", "reason": "Healthy", "lastHeartbeatTime": now});
    let conditions: Vec<Value> = conditions.take(CONDITIONS).map(healthy).collect();
    let patch = Patch::Strategic(json!({"status": {"conditions": conditions}}));
    let params = PatchParams::default();
    nodes.patch_status(node, &params, &patch).await?;
    Ok(())
}

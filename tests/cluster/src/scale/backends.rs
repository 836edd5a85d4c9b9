//! Preemption by half of the cluster with each scheduling backend.

use anyhow::{Context, Result};
use kube::ResourceExt;
use kube::api::ListParams;
use lockstep_cluster::manifests::gang;
use serde_json::json;
use tokio::time::Instant;

use crate::arms::Bench;

/// Feature gate of native groups.
pub const GATE: &str = "GenericWorkload=true";
/// Argument by which the API server serves native groups.
pub const SERVED: &str = "--runtime-config=scheduling.k8s.io/v1beta1=true";
/// Gangs of low priority, which fill the cluster.
pub const GANGS: i32 = 10;

/// Victims of a preemption.
#[derive(Default)]
struct Victims {
    gangs: usize,
    members: usize,
    /// Work that the victims lost, in accelerator-seconds.
    lost: i64,
}

impl Bench<'_> {
    /// Ten gangs of low priority fill the cluster. Then a gang of high priority needs half of it.
    pub async fn backends(&mut self) -> Result<()> {
        for backend in ["Lockstep", "Both", "Kubernetes"] {
            for _ in 0..self.few {
                self.backend(backend).await?;
            }
        }
        Ok(())
    }

    async fn backend(&mut self, backend: &str) -> Result<()> {
        let spec =
            |class: &str| json!({"priorityClassName": class, "scheduling": {"backend": backend}});
        let low: Vec<String> = (0..GANGS).map(|n| format!("low-{n}")).collect();
        let members = self.members / GANGS;
        let begun = Instant::now();
        for name in &low {
            self.t.create(gang(name, members, 8, spec("low"))).await?;
        }
        for name in &low {
            self.running(name).await?;
        }
        self.note(&format!("ten gangs, {backend}"), begun.elapsed())
            .await?;
        self.record.skip().await?;
        let begun = Instant::now();
        let half = GANGS / 2 * members;
        self.t.create(gang("boss", half, 8, spec("high"))).await?;
        self.running("boss").await?;
        let arm = format!("preemption by half the cluster, {backend}");
        self.note(&arm, begun.elapsed()).await?;
        let victims = self.victims(members).await?;
        println!(
            "    victims: {} gangs, {} members, {} accelerator-seconds lost",
            victims.gangs, victims.members, victims.lost
        );
        for name in low.iter().map(String::as_str).chain(["boss"]) {
            self.end(name).await?;
        }
        for name in low.iter().map(String::as_str).chain(["boss"]) {
            self.ended(name).await?;
        }
        Ok(())
    }

    async fn victims(&self, members: i32) -> Result<Victims> {
        let mut victims = Victims::default();
        let workloads = self.t.workloads().list(&ListParams::default()).await?;
        for workload in workloads {
            let name = workload.name_any();
            let status = workload.status.context("a status")?;
            if status.preemptions > 0 {
                victims.gangs += 1;
                victims.members += usize::try_from(members)?;
            }
            victims.lost += status.accounting.lost_accelerator_seconds;
            if status.preemptions > 1 {
                println!("    {name} was preempted {} times", status.preemptions);
            }
        }
        Ok(victims)
    }
}

//! Optional series of single workloads, by name, in bounded number. They are computed from status,
//! so a deleted workload has none.

use std::fmt;
use std::sync::Arc;

use lockstep_api::TrainingWorkload;
use lockstep_api::condition::ConditionStatus;
use lockstep_api::workload::{GroupStatus, Phase, TrainingWorkloadStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::clock::Clock;
use crate::encode::{gauge, single};
use crate::index::{Index, Key};
use crate::lease::Tenure;

pub struct WorkloadSeries {
    pub index: Arc<Index>,
    pub tenure: Tenure,
    pub clock: Arc<dyn Clock>,
    /// Most workloads with series.
    pub max: usize,
}

impl fmt::Debug for WorkloadSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkloadSeries")
    }
}

impl Collector for WorkloadSeries {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if self.tenure.check(self.clock.monotonic()).is_err() {
            return Ok(());
        }
        let all = self.index.read().workloads.clone();
        Shown::of(all, self.max).encode(&mut encoder)
    }
}

/// Order of workloads for the limited series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Runs,
    /// Can have members later.
    Waits,
    Over,
}

impl Standing {
    fn of(phase: Option<Phase>) -> Self {
        match phase {
            Some(Phase::Starting | Phase::Running | Phase::Restarting | Phase::Preempting) => {
                Self::Runs
            }
            None | Some(Phase::Pending | Phase::Suspended | Phase::Stalled) => Self::Waits,
            Some(Phase::Succeeded | Phase::Failed) => Self::Over,
        }
    }
}

#[derive(Debug)]
pub(super) struct Shown {
    workloads: Vec<(Key, Arc<TrainingWorkload>)>,
    left_out: usize,
}

type Labels<'a> = [(&'static str, &'a str); 2];

impl Shown {
    pub fn of(
        workloads: impl IntoIterator<Item = (Key, Arc<TrainingWorkload>)>,
        max: usize,
    ) -> Self {
        let mut workloads: Vec<_> = workloads.into_iter().collect();
        workloads.sort_by_cached_key(|(key, workload)| {
            let phase = workload.status.as_ref().and_then(|s| s.phase);
            let created = workload.metadata.creation_timestamp.as_ref().map(|t| t.0);
            (Standing::of(phase), created, key.clone())
        });
        let left_out = workloads.len().saturating_sub(max);
        workloads.truncate(max);
        Self {
            workloads,
            left_out,
        }
    }

    pub fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.info(encoder)?;
        self.conditions(encoder)?;
        self.number(
            encoder,
            "lockstep_workload_ready",
            "Members that are ready",
            |s| members(s, |g| g.ready),
        )?;
        self.number(
            encoder,
            "lockstep_workload_succeeded",
            "Members that have succeeded",
            |s| members(s, |g| g.succeeded),
        )?;
        self.number(
            encoder,
            "lockstep_workload_members",
            "Members that should run or have succeeded",
            |s| members(s, |g| g.desired),
        )?;
        self.number(
            encoder,
            "lockstep_workload_restarts",
            "Failures that were answered by a restart",
            |s| s.restarts.total,
        )?;
        self.number(
            encoder,
            "lockstep_workload_attempt",
            "Attempt, the highest of the restart domains",
            |s| s.attempt,
        )?;
        self.number(
            encoder,
            "lockstep_workload_accelerators",
            "Accelerators held",
            |s| s.accounting.accelerators,
        )?;
        self.number(
            encoder,
            "lockstep_workload_lost_accelerator_seconds",
            "Accelerator-seconds of work lost to failures and preemption, since the last checkpoints",
            |s| s.accounting.lost_accelerator_seconds,
        )?;
        self.number(
            encoder,
            "lockstep_workload_restart_accelerator_seconds",
            "Accelerator-seconds from failures until all members ran again",
            |s| s.accounting.restart_accelerator_seconds,
        )?;
        single(
            encoder,
            "lockstep_workloads_not_shown",
            "Workloads without series of their own, because there are more than metrics.workloads.max",
            self.left_out as i64,
        )
    }

    fn info(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut family = encoder.encode_descriptor(
            "lockstep_workload",
            "Phase of a workload (New without a status) and its reason",
            None,
            MetricType::Info,
        )?;
        for (key, workload) in &self.workloads {
            let status = workload.status.as_ref();
            let phase = status.and_then(|s| s.phase).map_or("New", Phase::as_str);
            let class = workload.spec.priority_class_name.as_deref();
            let [namespace, name] = labels(key);
            family.encode_info(&[
                namespace,
                name,
                ("phase", phase),
                ("reason", status.map_or("", |s| s.reason.as_str())),
                ("priority_class", class.unwrap_or_default()),
            ])?;
        }
        Ok(())
    }

    /// One series per status, with value 1 for the current status, as in kube-state-metrics.
    fn conditions(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let conditions = self.workloads.iter().flat_map(|(key, workload)| {
            let conditions = workload.status.iter().flat_map(|s| &s.conditions);
            conditions.map(move |condition| (key, condition))
        });
        let series = conditions.flat_map(|(key, condition)| {
            let [namespace, name] = labels(key);
            [ConditionStatus::True, ConditionStatus::False].map(|status| {
                let labels = [
                    namespace,
                    name,
                    ("condition", condition.type_.as_str()),
                    ("status", status.as_str()),
                ];
                (labels, i64::from(condition.status == status))
            })
        });
        gauge(
            encoder,
            "lockstep_workload_status_condition",
            "1 for the status of the condition (True, False), 0 for the other",
            series,
        )
    }

    fn number(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        of: impl Fn(&TrainingWorkloadStatus) -> i64,
    ) -> Result<(), fmt::Error> {
        let values = self
            .workloads
            .iter()
            .map(|(key, w)| (labels(key), w.status.as_ref().map_or(0, &of)));
        gauge(encoder, name, help, values)
    }
}

fn labels(key: &Key) -> Labels<'_> {
    [("namespace", &key.namespace), ("name", &key.name)]
}

fn members(status: &TrainingWorkloadStatus, of: impl Fn(&GroupStatus) -> i32) -> i64 {
    status.groups.iter().map(|group| i64::from(of(group))).sum()
}

//! Gauges over workloads and gangs. Only the process that leads shows them: every replica holds the
//! same objects, and sums over the replicas are to be right.

use std::collections::BTreeMap;

use lockstep_api::condition::{ConditionStatus, find, reasons, types};
use lockstep_api::scheduling::PodGroupStatus;
use lockstep_api::workload::Phase;
use lockstep_api::{PodGroup, TrainingWorkload};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use super::encode::gauge;
use crate::index::State;

/// A state that workloads are in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct ConditionLabels {
    namespace: String,
    condition: String,
    status: &'static str,
    reason: String,
}

/// Gangs that wait for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct WaitingLabels {
    namespace: String,
    reason: String,
}

/// How many objects there are of which kind.
#[derive(Debug, Default)]
pub(super) struct ObjectCounts {
    phases: BTreeMap<&'static str, i64>,
    gangs: BTreeMap<&'static str, i64>,
    conditions: BTreeMap<ConditionLabels, i64>,
    waiting: BTreeMap<WaitingLabels, i64>,
    accelerators: BTreeMap<String, i64>,
}

impl ObjectCounts {
    pub fn of(state: &State) -> Self {
        let mut counts = Self {
            // Known values are there from the start, so that a rate of change is, too.
            phases: Phase::ALL.map(|p| (p.as_str(), 0)).into(),
            gangs: ["waiting", "held", "placed", "preempting"]
                .map(|s| (s, 0))
                .into(),
            ..Self::default()
        };
        for (key, workload) in &state.workloads {
            counts.add_workload(&key.namespace, workload);
        }
        for (key, group) in &state.pod_groups {
            counts.add_gang(&key.namespace, group);
        }
        counts
    }

    fn add_workload(&mut self, namespace: &str, workload: &TrainingWorkload) {
        let status = workload.status.as_ref();
        let phase = status.and_then(|s| s.phase);
        *self
            .phases
            .entry(phase.map_or("New", Phase::as_str))
            .or_default() += 1;
        let Some(status) = status else { return };
        for condition in &status.conditions {
            let labels = ConditionLabels {
                namespace: namespace.to_owned(),
                condition: condition.type_.clone(),
                status: match condition.status {
                    ConditionStatus::True => "True",
                    ConditionStatus::False => "False",
                    ConditionStatus::Unknown => "Unknown",
                },
                reason: condition.reason.clone(),
            };
            *self.conditions.entry(labels).or_default() += 1;
        }
        if status.accounting.accelerators > 0 {
            let held = self.accelerators.entry(namespace.to_owned()).or_default();
            *held = held.saturating_add(status.accounting.accelerators);
        }
    }

    fn add_gang(&mut self, namespace: &str, group: &PodGroup) {
        let state = match group.status.as_ref() {
            Some(s) if s.preemption.is_some() => "preempting",
            Some(s) if s.placement.is_some() => "placed",
            Some(s) if is_waiting(s) => "waiting",
            _ => "held",
        };
        *self.gangs.entry(state).or_default() += 1;
        let scheduled = group.status.as_ref().and_then(scheduled_reason);
        if let Some(reason) = scheduled.filter(|_| ["waiting", "held"].contains(&state)) {
            let labels = WaitingLabels {
                namespace: namespace.to_owned(),
                reason: reason.to_owned(),
            };
            *self.waiting.entry(labels).or_default() += 1;
        }
    }

    pub fn encode(self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        gauge(
            encoder,
            "lockstep_workloads",
            "Workloads by phase",
            self.phases
                .into_iter()
                .map(|(phase, n)| ([("phase", phase)], n)),
        )?;
        gauge(
            encoder,
            "lockstep_workload_conditions",
            "Workloads by what their conditions say",
            self.conditions,
        )?;
        gauge(
            encoder,
            "lockstep_gangs",
            "Gangs by state of their placement",
            self.gangs
                .into_iter()
                .map(|(state, n)| ([("state", state)], n)),
        )?;
        gauge(
            encoder,
            "lockstep_waiting_gangs",
            "Gangs without placement by reason",
            self.waiting,
        )?;
        gauge(
            encoder,
            "lockstep_accelerators_held",
            "Accelerators that workloads hold",
            self.accelerators
                .into_iter()
                .map(|(namespace, n)| ([("namespace", namespace)], n)),
        )
    }
}

/// Whether a gang without placement is in the queue; the others are suspended, back off or wait for a
/// dependency.
fn is_waiting(status: &PodGroupStatus) -> bool {
    scheduled_reason(status) == Some(reasons::UNSCHEDULABLE)
}

/// What the condition says that tells why a gang is not placed.
fn scheduled_reason(status: &PodGroupStatus) -> Option<&str> {
    let scheduled = find(&status.conditions, types::POD_GROUP_INITIALLY_SCHEDULED);
    scheduled.map(|c| c.reason.as_str())
}

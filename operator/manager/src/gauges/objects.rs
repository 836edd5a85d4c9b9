//! Gauges over workloads.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::TrainingWorkload;
use lockstep_api::condition::Condition;
use lockstep_api::workload::{Phase, TrainingWorkloadStatus};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use super::waiting::NamespaceClassLabels;
use crate::encode::gauge;
use crate::index::State;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct ConditionLabels {
    namespace: String,
    condition: String,
    status: &'static str,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct StateLabels {
    condition: String,
    status: &'static str,
}

#[derive(Debug, Default)]
pub(super) struct ObjectCounts {
    phases: BTreeMap<&'static str, i64>,
    conditions: BTreeMap<ConditionLabels, i64>,
    oldest: BTreeMap<StateLabels, i64>,
    held: BTreeMap<NamespaceClassLabels, i64>,
    restarts_left: BTreeMap<String, i64>,
}

impl ObjectCounts {
    pub fn of(state: &State, now: DateTime<Utc>) -> Self {
        let mut counts = Self {
            // Known label values start at zero, as rates require.
            phases: Phase::ALL.map(|p| (p.as_str(), 0)).into(),
            ..Self::default()
        };
        for (key, workload) in &state.workloads {
            counts.add(&key.namespace, workload, now);
        }
        counts
    }

    fn add(&mut self, namespace: &str, workload: &TrainingWorkload, now: DateTime<Utc>) {
        let status = workload.status.as_ref();
        let phase = status.and_then(|s| s.phase);
        *self
            .phases
            .entry(phase.map_or("New", Phase::as_str))
            .or_default() += 1;
        let Some(status) = status else { return };
        for condition in &status.conditions {
            self.add_condition(namespace, condition, now);
        }
        if status.accounting.accelerators > 0 {
            let labels =
                NamespaceClassLabels::new(namespace, workload.spec.priority_class_name.as_deref());
            let held = self.held.entry(labels).or_default();
            *held = held.saturating_add(status.accounting.accelerators);
        }
        if let Some(left) = restarts_left(workload, status, now).filter(|_| phase.is_some_and(runs))
        {
            let least = self
                .restarts_left
                .entry(namespace.to_owned())
                .or_insert(left);
            *least = left.min(*least);
        }
    }

    fn add_condition(&mut self, namespace: &str, condition: &Condition, now: DateTime<Utc>) {
        let status = condition.status.as_str();
        let labels = ConditionLabels {
            namespace: namespace.to_owned(),
            condition: condition.type_.clone(),
            status,
            reason: condition.reason.clone(),
        };
        *self.conditions.entry(labels).or_default() += 1;
        let state = StateLabels {
            condition: condition.type_.clone(),
            status,
        };
        let age = (now - condition.last_transition_time).num_seconds().max(0);
        let oldest = self.oldest.entry(state).or_default();
        *oldest = age.max(*oldest);
    }

    pub fn encode(self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        gauge(
            encoder,
            "lockstep_workloads",
            "Workloads by phase; New has no status",
            self.phases
                .into_iter()
                .map(|(phase, n)| ([("phase", phase)], n)),
        )?;
        gauge(
            encoder,
            "lockstep_workload_conditions",
            "Workloads by condition, its status and its reason",
            self.conditions,
        )?;
        gauge(
            encoder,
            "lockstep_condition_oldest_seconds",
            "Longest time that any workload has had this status of the condition",
            self.oldest,
        )?;
        gauge(
            encoder,
            "lockstep_accelerators_held",
            "Accelerators that workloads hold",
            self.held,
        )?;
        gauge(
            encoder,
            "lockstep_restart_budget_remaining",
            "Fewest counted restarts left to any running workload of the namespace that has used one",
            self.restarts_left
                .into_iter()
                .map(|(namespace, n)| ([("namespace", namespace)], n)),
        )
    }
}

fn runs(phase: Phase) -> bool {
    match phase {
        Phase::Starting | Phase::Running | Phase::Restarting => true,
        Phase::Pending
        | Phase::Preempting
        | Phase::Suspended
        | Phase::Succeeded
        | Phase::Failed
        | Phase::Stalled => false,
    }
}

/// Counted restarts left in the current window. `None` if all are left.
fn restarts_left(
    workload: &TrainingWorkload,
    status: &TrainingWorkloadStatus,
    now: DateTime<Utc>,
) -> Option<i64> {
    let limits = &workload.spec.failure_policy.limits;
    let counted = status.restarts.counted_at.iter();
    let recent = |at: &&DateTime<Utc>| (now - **at).num_seconds() < limits.window_seconds;
    let used = counted.filter(recent).count() as i64;
    (used > 0).then(|| (i64::from(limits.max_restarts) - used).max(0))
}

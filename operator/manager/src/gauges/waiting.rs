//! Gauges of gangs: number waiting, age and requested accelerators.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::PodGroup;
use lockstep_api::scheduling::PodGroupStatus;
use lockstep_scheduler::GangInput;
use lockstep_scheduler::GangPhase;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use super::capacity::count;
use crate::encode::{gauge, single};
use crate::index::State;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct WaitingLabels {
    namespace: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct NamespaceClassLabels {
    namespace: String,
    priority_class: String,
}

impl NamespaceClassLabels {
    pub fn new(namespace: &str, class: Option<&str>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            priority_class: class.unwrap_or_default().to_owned(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct WaitingCounts {
    gangs: BTreeMap<&'static str, i64>,
    reasons: BTreeMap<WaitingLabels, i64>,
    /// Seconds, by priority class.
    oldest: BTreeMap<String, i64>,
    requested: BTreeMap<NamespaceClassLabels, i64>,
    outranked: i64,
}

impl WaitingCounts {
    pub fn of(state: &State, accelerators: &[String], now: DateTime<Utc>) -> Self {
        let mut counts = Self {
            gangs: ["waiting", "held", "placed", "preempting"]
                .map(|s| (s, 0))
                .into(),
            outranked: outranked(state, accelerators),
            ..Self::default()
        };
        for (key, group) in &state.pod_groups {
            let input = state.gang_inputs.get(key);
            // The status of a finished gang keeps its last placement, without capacity.
            if input.is_some_and(|input| input.phase() == &GangPhase::Finished) {
                continue;
            }
            counts.add_state(&key.namespace, group);
            if let Some(input) = input.filter(|input| waits(input)) {
                let class = group.spec.gang.priority_class_name.as_deref();
                let labels = NamespaceClassLabels::new(&key.namespace, class);
                let requested = counts.requested.entry(labels).or_default();
                *requested = requested.saturating_add(accelerators_of(input, accelerators));
                let since = input.group.status.queued_at;
                let age = since.map_or(0, |since| (now - since).num_seconds().max(0));
                let oldest = counts
                    .oldest
                    .entry(class.unwrap_or_default().to_owned())
                    .or_default();
                *oldest = age.max(*oldest);
            }
        }
        counts
    }

    fn add_state(&mut self, namespace: &str, group: &PodGroup) {
        let state = match group.status.as_ref() {
            Some(s) if s.preemption.is_some() => "preempting",
            Some(s) if s.placement.is_some() => "placed",
            Some(s) if s.waits_for_capacity() => "waiting",
            _ => "held",
        };
        *self.gangs.entry(state).or_default() += 1;
        let scheduled = group
            .status
            .as_ref()
            .and_then(PodGroupStatus::scheduled_reason);
        if let Some(reason) = scheduled.filter(|_| ["waiting", "held"].contains(&state)) {
            let labels = WaitingLabels {
                namespace: namespace.to_owned(),
                reason: reason.to_owned(),
            };
            *self.reasons.entry(labels).or_default() += 1;
        }
    }

    pub fn encode(self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        gauge(
            encoder,
            "lockstep_gangs",
            "Gangs that have not ended, by state: waiting for capacity, held (suspended, in back-off, or waiting for something else), placed, preempting",
            self.gangs
                .into_iter()
                .map(|(state, n)| ([("state", state)], n)),
        )?;
        gauge(
            encoder,
            "lockstep_waiting_gangs",
            "Gangs without placement, by the reason in the condition of their pod group",
            self.reasons,
        )?;
        gauge(
            encoder,
            "lockstep_oldest_wait_seconds",
            "Age of the oldest gang in the queue, in seconds",
            self.oldest
                .into_iter()
                .map(|(class, n)| ([("priority_class", class)], n)),
        )?;
        gauge(
            encoder,
            "lockstep_accelerators_requested",
            "Accelerators that gangs in the queue request",
            self.requested,
        )?;
        single(
            encoder,
            "lockstep_accelerators_outranked",
            "Accelerators held by gangs of lower priority than the most important one that waits for capacity",
            self.outranked,
        )
    }
}

fn waits(gang: &GangInput) -> bool {
    gang.phase() == &GangPhase::Active && gang.group.status.placement.is_none()
}

fn accelerators_of(gang: &GangInput, accelerators: &[String]) -> i64 {
    let members = gang.gang.members();
    let each = members.filter_map(|member| gang.requests(&member.group));
    each.map(|requests| count(requests, accelerators)).sum()
}

/// Accelerators of placed gangs below the priority of the highest gang that waits for capacity.
fn outranked(state: &State, accelerators: &[String]) -> i64 {
    let gangs = || state.gang_inputs.values();
    let waiting = gangs().filter(|gang| waits(gang) && gang.group.status.waits_for_capacity());
    let Some(highest) = waiting.map(|gang| gang.group.priority).max() else {
        return 0;
    };
    let lower = gangs().filter(|gang| gang.group.priority < highest);
    lower.map(|gang| has(gang, accelerators)).sum()
}

fn has(gang: &GangInput, accelerators: &[String]) -> i64 {
    let members = gang.group.assigned.iter().flat_map(|a| a.keys());
    let each = members.filter_map(|member| gang.requests(&member.group));
    each.map(|requests| count(requests, accelerators)).sum()
}

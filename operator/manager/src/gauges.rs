//! Gauges that are computed from the index when they are read, so that none can drift.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockstep_api::condition::{find, reasons, types};
use lockstep_api::scheduling::PodGroupStatus;
use lockstep_api::workload::Phase;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::clock::Clock;
use crate::index::{Index, WatchedKind};
use crate::lease::Tenure;

/// The gauges of a process.
pub struct Gauges {
    /// The index.
    pub index: Arc<Index>,
    /// Whether it leads.
    pub tenure: Tenure,
    /// Clocks.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Gauges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gauges")
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let leads = i64::from(self.tenure.check(self.clock.monotonic()).is_ok());
        let name = [("name", "lockstep-manager")];
        gauge(
            &mut encoder,
            "leader_election_master_status",
            "Whether this process leads",
            [(name, leads)],
        )?;
        let pending = self.index.pending();
        let synced = WatchedKind::ALL.map(|k| {
            (
                [("kind", k.name())],
                i64::from(!pending.contains(&k.name())),
            )
        });
        gauge(
            &mut encoder,
            "lockstep_synced",
            "Whether a kind has been listed",
            synced,
        )?;

        let state = self.index.read();
        let objects = state
            .counts()
            .map(|(kind, count)| ([("kind", kind.name())], count as i64));
        let mut unreadable: BTreeMap<&str, i64> =
            WatchedKind::ALL.iter().map(|k| (k.name(), 0)).collect();
        for (kind, _) in state.unreadable.keys() {
            *unreadable.entry(kind.name()).or_default() += 1;
        }
        let mut phases: BTreeMap<String, i64> = BTreeMap::new();
        for workload in state.workloads.values() {
            let phase = workload.status.as_ref().and_then(|s| s.phase);
            *phases
                .entry(phase.map_or("New", Phase::as_str).to_owned())
                .or_default() += 1;
        }
        let mut gangs = BTreeMap::from([
            ("waiting", 0),
            ("held", 0),
            ("placed", 0),
            ("preempting", 0),
        ]);
        for group in state.pod_groups.values() {
            let status = group.status.as_ref();
            let state = match status {
                Some(s) if s.preemption.is_some() => "preempting",
                Some(s) if s.placement.is_some() => "placed",
                Some(s) if is_waiting(s) => "waiting",
                _ => "held",
            };
            *gangs.entry(state).or_default() += 1;
        }
        drop(state);

        gauge(
            &mut encoder,
            "lockstep_index_objects",
            "Objects held",
            objects,
        )?;
        let unreadable = unreadable
            .into_iter()
            .map(|(kind, n)| ([("kind", kind)], n));
        gauge(
            &mut encoder,
            "lockstep_unreadable_objects",
            "Objects that could not be read",
            unreadable,
        )?;
        let phases = phases
            .iter()
            .map(|(phase, n)| ([("phase", phase.as_str())], *n));
        gauge(
            &mut encoder,
            "lockstep_workloads",
            "Workloads by phase",
            phases,
        )?;
        let gangs = gangs.into_iter().map(|(state, n)| ([("state", state)], n));
        gauge(
            &mut encoder,
            "lockstep_gangs",
            "Gangs by state of their placement",
            gangs,
        )
    }
}

/// Whether a gang without placement is in the queue; the others are suspended, back off or wait for a
/// dependency.
fn is_waiting(status: &PodGroupStatus) -> bool {
    let scheduled = find(&status.conditions, types::POD_GROUP_INITIALLY_SCHEDULED);
    scheduled.is_some_and(|c| c.reason == reasons::UNSCHEDULABLE)
}

fn gauge<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, i64)>,
) -> Result<(), std::fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

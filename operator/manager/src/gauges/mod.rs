//! Gauges computed from the index at each scrape, so that they cannot drift.

mod agents;
mod capacity;
mod node_signals;
mod objects;
#[cfg(test)]
pub(crate) mod tests;
mod waiting;
mod workloads;

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use self::agents::AgentCounts;
use self::capacity::Accelerators;
use self::node_signals::SignalCounts;
use self::objects::ObjectCounts;
use self::waiting::WaitingCounts;
pub use self::workloads::WorkloadSeries;
use crate::clock::Clock;
use crate::encode::gauge;
use crate::index::{Index, State, WatchedKind};
use crate::lease::Tenure;

pub struct Gauges {
    pub index: Arc<Index>,
    pub tenure: Tenure,
    pub clock: Arc<dyn Clock>,
    pub accelerators: Vec<String>,
}

/// Exported only by the leader, because all replicas index the same objects.
struct OfLeader {
    objects: ObjectCounts,
    waiting: WaitingCounts,
    accelerators: Accelerators,
    agents: AgentCounts,
    signals: SignalCounts,
}

impl OfLeader {
    fn of(state: &State, accelerators: &[String], now: DateTime<Utc>) -> Self {
        Self {
            objects: ObjectCounts::of(state, now),
            waiting: WaitingCounts::of(state, accelerators, now),
            accelerators: Accelerators::of(state, accelerators),
            agents: AgentCounts::of(state),
            signals: SignalCounts::of(state, now),
        }
    }

    fn encode(self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.objects.encode(encoder)?;
        self.waiting.encode(encoder)?;
        self.accelerators.encode(encoder)?;
        self.agents.encode(encoder)?;
        self.signals.encode(encoder)
    }
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
            "1 while this process leads",
            [(name, leads)],
        )?;
        let pending = self.index.pending();
        let synced = WatchedKind::always().map(|k| {
            (
                [("kind", k.as_str())],
                i64::from(!pending.contains(&k.as_str())),
            )
        });
        gauge(
            &mut encoder,
            "lockstep_synced",
            "1 once a kind has been listed; the manager decides nothing before all kinds are listed",
            synced,
        )?;

        let state = self.index.read();
        let objects = state
            .counts()
            .into_iter()
            .filter(|(kind, count)| *count > 0 || !WatchedKind::OPTIONAL.contains(kind))
            .map(|(kind, count)| ([("kind", kind.as_str())], count as i64));
        let mut unreadable: BTreeMap<&str, i64> =
            WatchedKind::always().map(|k| (k.as_str(), 0)).collect();
        for (kind, _) in state.unreadable.keys() {
            *unreadable.entry(kind.as_str()).or_default() += 1;
        }
        let of_leader =
            (leads == 1).then(|| OfLeader::of(&state, &self.accelerators, self.clock.wall()));
        drop(state);

        gauge(
            &mut encoder,
            "lockstep_index_objects",
            "Objects of a kind in the index",
            objects,
        )?;
        let unreadable = unreadable
            .into_iter()
            .map(|(kind, n)| ([("kind", kind)], n));
        gauge(
            &mut encoder,
            "lockstep_unreadable_objects",
            "Objects that could not be read and are ignored; the log names them",
            unreadable,
        )?;
        match of_leader {
            Some(counts) => counts.encode(&mut encoder),
            None => Ok(()),
        }
    }
}

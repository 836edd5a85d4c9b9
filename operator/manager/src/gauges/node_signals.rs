use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::SignalLevel;
use prometheus_client::encoding::DescriptorEncoder;

use crate::encode::gauge;
use crate::index::State;

/// Nodes with signals that count, by their most severe level, and whether gangs run there.
#[derive(Debug)]
pub(super) struct SignalCounts(BTreeMap<(SignalLevel, bool), i64>);

impl SignalCounts {
    pub fn of(state: &State, now: DateTime<Utc>) -> Self {
        let series = SignalLevel::ALL
            .into_iter()
            .flat_map(|level| [(level, false), (level, true)]);
        let mut counts: BTreeMap<_, _> = series.map(|series| (series, 0)).collect();
        for (name, node) in &state.nodes {
            let counting = node.signals.iter().filter(|signal| signal.counts(now));
            if let Some(level) = counting.map(|signal| signal.level).max() {
                *counts.entry((level, state.has_members(name))).or_default() += 1;
            }
        }
        Self(counts)
    }

    pub fn encode(self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gangs = |with| if with { "true" } else { "false" };
        let series = self.0.into_iter();
        gauge(
            encoder,
            "lockstep_nodes_with_signals",
            "Nodes with signals by the most severe level, and whether members of gangs run there",
            series
                .map(|((level, with), n)| ([("level", level.as_str()), ("gangs", gangs(with))], n)),
        )
    }
}

//! Cost of foreign units.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

use crate::cluster::Snapshot;
use crate::eviction::cost::CostModel;
use crate::eviction::units::UnitsBuilder;
use crate::pods::pod::Pod;

/// Foreign units by namespace and key; see [`Snapshot::unit`].
pub(crate) struct ForeignUnits<'a> {
    cluster: &'a Snapshot,
    losses: HashMap<(&'a str, &'a str), UnitLoss>,
}

#[derive(Default)]
struct UnitLoss {
    pods: usize,
    /// Cost of evicting all its pods, including unevictable ones, in accelerator-seconds.
    cost: u64,
    /// Ordinal of its cascade, from the first evictable pod on.
    cascade: Option<usize>,
}

impl<'a> ForeignUnits<'a> {
    pub fn new(cluster: &'a Snapshot, costs: &CostModel, now: DateTime<Utc>) -> Self {
        let mut losses: HashMap<_, UnitLoss> = HashMap::new();
        let parts = cluster.pod_parts().filter(|part| part.in_units);
        let listed = parts.flat_map(|part| &part.pods);
        for listed in listed.filter(|l| l.in_unit && l.bound && !l.terminating) {
            let Some(key) = key(cluster, &listed.pod) else {
                continue;
            };
            let unit = losses.entry(key).or_default();
            unit.pods += 1;
            let cost = costs.cost_of_pod(&listed.pod, now).total();
            unit.cost = unit.cost.saturating_add(cost);
        }
        Self { cluster, losses }
    }

    pub fn cascade(&mut self, pod: &'a Pod, builder: &mut UnitsBuilder<'_>) -> Option<usize> {
        let unit = self.losses.get_mut(&key(self.cluster, pod)?)?;
        if unit.pods > 1 && unit.cascade.is_none() {
            unit.cascade = Some(builder.cascade(unit.cost));
        }
        unit.cascade
    }
}

fn key<'a>(cluster: &'a Snapshot, pod: &'a Pod) -> Option<(&'a str, &'a str)> {
    Some((&*pod.namespace, cluster.unit(pod)?.key))
}

//! Cost of foreign units.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

use crate::cluster::Snapshot;
use crate::cost::CostModel;
use crate::pod::Pod;
use crate::units::UnitsBuilder;

/// Foreign units by namespace and key; see [`Pod::unit`].
pub(crate) struct ForeignUnits<'a>(HashMap<(&'a str, &'a str), ForeignUnit>);

#[derive(Default)]
struct ForeignUnit {
    pods: usize,
    /// Cost of evicting all its pods, including unevictable ones, in accelerator-seconds.
    cost: u64,
    /// Ordinal of its cascade, from the first evictable pod on.
    cascade: Option<usize>,
}

impl<'a> ForeignUnits<'a> {
    pub fn new(cluster: &'a Snapshot, costs: &CostModel, now: DateTime<Utc>) -> Self {
        let mut units: HashMap<_, ForeignUnit> = HashMap::new();
        let parts = cluster.pod_parts().filter(|part| part.in_units);
        let listed = parts.flat_map(|part| &part.pods);
        for listed in listed.filter(|l| l.in_unit && l.bound && !l.terminating) {
            let Some(key) = key(&listed.pod) else {
                continue;
            };
            if cluster.unit_mode(&listed.pod).is_none() {
                continue;
            }
            let unit = units.entry(key).or_default();
            unit.pods += 1;
            let cost = costs.cost_of_pod(&listed.pod, now).total();
            unit.cost = unit.cost.saturating_add(cost);
        }
        Self(units)
    }

    pub fn cascade(&mut self, pod: &'a Pod, builder: &mut UnitsBuilder<'_>) -> Option<usize> {
        let unit = self.0.get_mut(&key(pod)?)?;
        if unit.pods > 1 && unit.cascade.is_none() {
            unit.cascade = Some(builder.cascade(unit.cost));
        }
        unit.cascade
    }
}

fn key(pod: &Pod) -> Option<(&str, &str)> {
    Some((&*pod.namespace, &*pod.unit.as_ref()?.key))
}

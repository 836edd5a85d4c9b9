//! Share of the cluster that the gangs of a namespace hold, divided by its weight. Decides the
//! queue order within one priority.

use std::collections::BTreeMap;

use lockstep_api::names::annotations;

use crate::cluster::Snapshot;
use crate::common::quantity::milli;
use crate::pods::resources::{CPU, Resources};

/// Unit of shares: a namespace of weight 1 that holds all of a resource.
const WHOLE: u128 = 1_000_000_000;
/// Default weight, in thousandths.
const DEFAULT_WEIGHT: u64 = 1000;

/// Weights of the namespaces with their own weight, in thousandths.
pub type Weights = BTreeMap<String, u64>;

/// Weight in the annotation of a namespace, in thousandths. `None`: missing or invalid.
pub fn weight(annotations: Option<&BTreeMap<String, String>>) -> Option<u64> {
    let text = annotations?.get(annotations::FAIR_SHARE_WEIGHT)?;
    u64::try_from(milli(text).ok()?).ok()
}

/// Resources held by the gangs of each namespace.
#[derive(Clone, Debug, Default)]
pub struct Shares<'w> {
    allocatable: BTreeMap<String, i128>,
    held: BTreeMap<String, BTreeMap<String, i128>>,
    weights: Option<&'w Weights>,
}

impl<'w> Shares<'w> {
    pub fn new(cluster: &Snapshot, weights: &'w Weights) -> Self {
        let offered = |dim: usize| cluster.free_capacity().offered(dim);
        let names = cluster.dims().extended();
        let mut allocatable: BTreeMap<String, i128> = names
            .map(|(dim, name)| (name.to_owned(), offered(dim)))
            .filter(|(_, amount)| *amount > 0)
            .collect();
        // Of a cluster without accelerators, a share is a share of its CPU.
        if allocatable.is_empty()
            && let Some(dim) = cluster.dims().dim(CPU)
        {
            allocatable.insert(CPU.to_owned(), offered(dim));
        }
        Self {
            allocatable,
            held: BTreeMap::new(),
            weights: Some(weights),
        }
    }

    pub fn add(&mut self, namespace: &str, requests: &Resources, pods: usize) {
        let held = self.held.entry(namespace.to_owned()).or_default();
        let counted = |(name, _): &(&str, i64)| self.allocatable.contains_key(*name);
        for (name, amount) in requests.iter().filter(counted) {
            *held.entry(name.to_owned()).or_default() += i128::from(amount) * pods as i128;
        }
    }

    /// Dominant share of a namespace, in billionths: the largest fraction of a counted resource
    /// that its gangs hold, divided by its weight. A namespace of weight 0 is last.
    pub fn of(&self, namespace: &str) -> u64 {
        let own = self.weights.and_then(|w| w.get(namespace));
        let weight = u128::from(own.copied().unwrap_or(DEFAULT_WEIGHT));
        if weight == 0 {
            return u64::MAX;
        }
        let held = self.held.get(namespace).into_iter().flatten();
        let parts = held.filter_map(|(name, amount)| {
            let all = u128::try_from(*self.allocatable.get(name)?).ok()?;
            let part = u128::try_from(*amount).ok()? * WHOLE;
            (part * u128::from(DEFAULT_WEIGHT)).checked_div(all * weight)
        });
        u64::try_from(parts.max().unwrap_or(0)).unwrap_or(u64::MAX)
    }
}

/// A share as a fraction of the cluster, from 0 to 1. `None` for a namespace of weight 0.
pub fn fraction(share: u64) -> Option<f64> {
    (share < u64::MAX).then_some(share as f64 / WHOLE as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterModel;
    use crate::test_support::{mk_node, mk_resources};

    #[test]
    fn a_share_is_the_largest_part_of_an_extended_resource_by_weight() {
        let mut model = ClusterModel::default();
        for name in ["n1", "n2"] {
            model.upsert_node(mk_node(name, 8));
        }
        let cluster = model.snapshot();
        let weights = Weights::from([("half".into(), 500), ("none".into(), 0)]);
        let mut shares = Shares::new(&cluster, &weights);
        let pod = mk_resources(&[
            ("cpu", "100"),
            ("nvidia.com/gpu", "2"),
            ("example.com/gone", "5"),
        ]);
        for namespace in ["one", "half", "none"] {
            shares.add(namespace, &pod, 2);
        }
        let of = |namespace: &str| fraction(shares.of(namespace));
        assert_eq!((of("one"), of("half")), (Some(0.25), Some(0.5)));
        assert_eq!((of("other"), of("none")), (Some(0.0), None));
    }

    #[test]
    fn a_share_of_a_cluster_without_accelerators_is_the_part_of_its_cpu() {
        let mut model = ClusterModel::default();
        model.upsert_node(mk_node("n1", 0));
        let cluster = model.snapshot();
        let weights = Weights::new();
        let mut shares = Shares::new(&cluster, &weights);
        shares.add("one", &mk_resources(&[("cpu", "16")]), 2);
        assert_eq!(fraction(shares.of("one")), Some(0.5));
    }

    #[test]
    fn a_weight_is_a_quantity_and_what_is_none_counts_as_not_there() {
        for (text, expected) in [
            ("2", Some(2000)),
            ("0.5", Some(500)),
            ("0", Some(0)),
            ("many", None),
        ] {
            let notes =
                BTreeMap::from([(annotations::FAIR_SHARE_WEIGHT.to_owned(), text.to_owned())]);
            assert_eq!(weight(Some(&notes)), expected, "{text}");
        }
        assert_eq!(weight(None), None);
    }
}

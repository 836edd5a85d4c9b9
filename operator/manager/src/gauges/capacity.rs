//! Gauges of accelerators by state.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::member::Member;
use lockstep_model::{Resources, Snapshot};
use lockstep_scheduler::GangInput;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use crate::encode::gauge;
use crate::index::State;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct CapacityLabels {
    resource: String,
    state: &'static str,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Accelerators(BTreeMap<CapacityLabels, i64>);

/// Accelerators promised to members without a bound pod, by node and resource.
type Promised = BTreeMap<usize, BTreeMap<String, i64>>;

pub(super) fn count(resources: &Resources, accelerators: &[String]) -> i64 {
    accelerators.iter().map(|name| resources.get(name)).sum()
}

impl Accelerators {
    pub fn of(state: &State, accelerators: &[String]) -> Self {
        let cluster = state.model.snapshot();
        let mut promised = Promised::new();
        for gang in state.gang_inputs.values() {
            promise(&mut promised, &cluster, gang, accelerators);
        }
        let mut counts = Self::default();
        for ix in 0..cluster.node_count() {
            let of_node = promised.remove(&ix).unwrap_or_default();
            for resource in accelerators {
                let promised = of_node.get(resource).copied().unwrap_or_default();
                counts.add_node(&cluster, ix, resource, promised);
            }
        }
        counts
    }

    fn add_node(&mut self, cluster: &Snapshot, ix: usize, resource: &str, promised: i64) {
        let Some(node) = cluster.node(ix) else { return };
        let all = node.allocatable.get(resource);
        if all == 0 {
            return;
        }
        let (mut held, mut leaving, mut promised) = (0_i64, 0_i64, promised);
        for pod in cluster.pods_on(ix) {
            // An unbound pod waits for its victims. Its accelerators count as promised, because
            // those of the victims count too.
            let part = match (&pod.bound, pod.terminating) {
                (None, _) => &mut promised,
                (Some(_), Some(_)) => &mut leaving,
                (Some(_), None) => &mut held,
            };
            *part += pod.requests.get(resource);
        }
        let rest = (all - held - leaving).max(0);
        let usable = node.state.takes_pods() && !node.state.cordoned;
        let reserved = if usable { promised.min(rest) } else { 0 };
        for (state, n) in [
            ("held", held),
            ("leaving", leaving),
            ("reserved", reserved),
            ("free", if usable { rest - reserved } else { 0 }),
            ("unusable", if usable { 0 } else { rest }),
        ] {
            let labels = CapacityLabels {
                resource: resource.to_owned(),
                state,
            };
            *self.0.entry(labels).or_default() += n;
        }
    }

    pub fn encode(self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        gauge(
            encoder,
            "lockstep_accelerators",
            "Accelerators of nodes by state: held by pods, leaving with terminating pods, reserved for unbound members and waiting gangs, unusable on cordoned, unready and faulty nodes, free",
            self.0,
        )
    }
}

/// Adds the accelerators of placed members without pods, and of the reservation.
fn promise(promised: &mut Promised, cluster: &Snapshot, gang: &GangInput, accelerators: &[String]) {
    let pods = cluster.pods_of(gang.workload.uid.as_str());
    let placed: BTreeSet<(&Member, &str)> = pods
        .iter()
        .filter_map(|pod| Some((pod.member.as_ref()?, pod.holds()?)))
        .collect();
    let assigned = gang
        .group
        .assigned
        .iter()
        .flat_map(|a| a.iter())
        .map(|(member, node)| (member, node.as_str()));
    let missing = assigned
        .filter(|place| !placed.contains(place))
        .map(|(member, node)| (node, &member.group, 1));
    let reserved = gang.group.status.reservation.iter().flat_map(|r| &r.nodes);
    let kept = reserved.flat_map(|kept| {
        let groups = kept.members.iter();
        groups.map(move |(group, members)| (kept.node.as_str(), group, i64::from(*members)))
    });
    for (node, group, members) in missing.chain(kept) {
        let (Some(ix), Some(requests)) = (cluster.ordinal(node), gang.requests(group)) else {
            continue;
        };
        let of_node = promised.entry(ix).or_default();
        for name in accelerators {
            let amount = requests.get(name).saturating_mul(members);
            *of_node.entry(name.clone()).or_default() += amount;
        }
    }
}

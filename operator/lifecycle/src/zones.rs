//! Zones whose nodes are silent together: an outage of the connection to the API server, not a loss
//! of nodes.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use lockstep_api::Reach;

use crate::nodes::NodeInfo;

/// Default of `--unhealthy-zone-threshold` of the node lifecycle controller: percentage of NotReady
/// nodes in an outage.
pub const OUTAGE_PERCENT: usize = 55;

/// Least number of NotReady nodes in an outage (`ComputeZoneState` of the node lifecycle
/// controller). A cluster without Ready nodes has an outage at any size.
const OUTAGE_NODES: usize = 3;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneInfo {
    pub outage: bool,
    /// End of the last outage, as far as nodes show it. Earlier silence of a node does not count as
    /// its loss.
    pub outage_ended: Option<DateTime<Utc>>,
}

impl ZoneInfo {
    /// Time from which the silence of a node counts as its loss. `None` during an outage.
    fn counts_from(&self, silent_since: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let after = self.outage_ended.max(Some(silent_since));
        after.filter(|_| !self.outage)
    }

    /// From all nodes of the cluster.
    pub fn of<'n>(nodes: impl IntoIterator<Item = &'n NodeInfo>) -> BTreeMap<String, Self> {
        let mut zones: BTreeMap<&str, Readiness> = BTreeMap::new();
        let mut cluster = Readiness::default();
        for node in nodes {
            zones.entry(&node.zone).or_default().add(node);
            cluster.add(node);
        }
        let all = cluster.nodes();
        let (outage, outage_ended) = cluster.outage(all);
        let zone = |(name, mut readiness): (&str, Readiness)| {
            let share = (readiness.nodes() * OUTAGE_PERCENT).div_ceil(100);
            let (own, ended) = readiness.outage(share.max(OUTAGE_NODES));
            let info = Self {
                outage: own || outage,
                outage_ended: ended.max(outage_ended),
            };
            (name.to_owned(), info)
        };
        zones.into_iter().map(zone).collect()
    }
}

/// Reach of a node as read, with the outages of its zone.
pub fn reach(node: &NodeInfo, zone: Option<&ZoneInfo>) -> Reach {
    match (node.state.reach, node.not_ready_since) {
        (Reach::Silent { .. }, Some(since)) => Reach::Silent {
            since: zone.map_or(Some(since), |zone| zone.counts_from(since)),
        },
        (reach, _) => reach,
    }
}

#[derive(Default)]
struct Readiness {
    not_ready: usize,
    ready_since: Vec<DateTime<Utc>>,
}

impl Readiness {
    fn add(&mut self, node: &NodeInfo) {
        match node.not_ready_since {
            Some(_) => self.not_ready += 1,
            None => self.ready_since.push(node.ready_since.unwrap_or_default()),
        }
    }

    fn nodes(&self) -> usize {
        self.not_ready + self.ready_since.len()
    }

    /// Whether an outage is in progress (`needed` NotReady nodes), and when the last one ended:
    /// when fewer nodes were NotReady.
    fn outage(&mut self, needed: usize) -> (bool, Option<DateTime<Utc>>) {
        let Some(missing) = needed.checked_sub(self.not_ready).filter(|n| *n > 0) else {
            return (self.nodes() > 0, None);
        };
        if missing > self.ready_since.len() {
            return (false, None);
        }
        let (_, ended, _) = self
            .ready_since
            .select_nth_unstable_by(missing - 1, |a, b| b.cmp(a));
        (false, Some(*ended))
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    fn silent(zone: &str) -> NodeInfo {
        NodeInfo {
            zone: zone.into(),
            not_ready_since: Some(at(100)),
            ..NodeInfo::default()
        }
    }

    fn ready(zone: &str, since: i64) -> NodeInfo {
        NodeInfo {
            zone: zone.into(),
            ready_since: Some(at(since)),
            ..NodeInfo::default()
        }
    }

    /// True if a zone with this many silent nodes has an outage.
    fn outage(silent_nodes: usize, nodes: usize) -> bool {
        let all: Vec<NodeInfo> = (0..nodes)
            .map(|i| {
                if i < silent_nodes {
                    silent("")
                } else {
                    ready("", 0)
                }
            })
            .collect();
        ZoneInfo::of(&all)[""].outage
    }

    #[test]
    fn more_than_two_nodes_and_over_half_of_a_zone_are_an_outage() {
        assert_eq!([0, 1, 2].map(|n| outage(n, 3)), [false; 3]);
        assert_eq!([2, 3].map(|n| outage(n, 4)), [false, true]);
        assert_eq!([54, 55].map(|n| outage(n, 100)), [false, true]);
    }

    #[test]
    fn a_cluster_without_any_ready_node_has_an_outage() {
        assert_eq!([1, 2, 3].map(|n| outage(n, n)), [true; 3]);
        assert!(!outage(1, 2), "one of two is a loss");
    }

    #[test]
    fn a_small_zone_without_ready_nodes_has_no_outage() {
        let zones = ZoneInfo::of(&[silent("a"), silent("a"), ready("b", 0)]);
        assert!(!zones["a"].outage && !zones["b"].outage, "{zones:?}");
    }

    #[test]
    fn an_outage_of_one_zone_is_none_of_another() {
        let mut nodes = vec![silent("a"); 5];
        nodes.extend(vec![ready("b", 0); 5]);
        nodes.push(silent("b"));
        let zones = ZoneInfo::of(&nodes);
        assert_eq!((zones["a"].outage, zones["b"].outage), (true, false));
    }

    #[test]
    fn an_outage_ends_when_enough_nodes_are_ready_again() {
        let mut nodes = vec![silent(""), silent("")];
        nodes.extend([200, 210, 220, 230].map(|since| ready("", since)));
        let zone = &ZoneInfo::of(&nodes)[""];
        assert_eq!((zone.outage, zone.outage_ended), (false, Some(at(220))));
        nodes[0] = ready("", 300);
        let zone = &ZoneInfo::of(&nodes)[""];
        assert_eq!(
            zone.outage_ended,
            Some(at(220)),
            "a later return changes nothing"
        );
    }
}

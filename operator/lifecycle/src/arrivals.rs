//! Arrivals of members at an attempt, as reported by agents.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use crate::observed::Observed;
use crate::pods::PodView;

/// Reports of a node count only for its own pods, and cannot hide reports of other nodes.
pub(crate) struct Arrivals<'a> {
    by_node: BTreeMap<&'a str, OfNode<'a>>,
}

/// Reports of one node, by pod UID.
#[derive(Default)]
struct OfNode<'a> {
    arrived: BTreeMap<&'a str, Arrival<'a>>,
    /// Attempts at which pods are reported as overdue.
    late: BTreeMap<&'a str, i64>,
}

pub(crate) struct Arrival<'a> {
    pub attempt: i64,
    /// Runtime id of its training container at that time.
    pub container: &'a str,
    /// Restart count of that container.
    pub restarts: i32,
    received_at: DateTime<Utc>,
}

impl<'a> Arrivals<'a> {
    pub fn new(view: Observed<'a>) -> Self {
        let mut by_node = BTreeMap::new();
        for (node, agent) in view.agents() {
            let of_node: &mut OfNode<'_> = by_node.entry(node.as_str()).or_default();
            let arrivals = agent.status.arrivals.iter().zip(&agent.received_at);
            for (domain, received_at) in arrivals.filter(|(a, _)| a.workload_uid == view.uid()) {
                for pod in &domain.pods {
                    let arrival = Arrival {
                        attempt: domain.attempt,
                        container: &pod.container_id,
                        restarts: pod.restarts,
                        received_at: *received_at,
                    };
                    of_node.arrived.insert(&pod.pod_uid, arrival);
                }
                for uid in &domain.late {
                    of_node.late.insert(uid, domain.attempt);
                }
            }
        }
        Self { by_node }
    }

    pub fn of(&self, pod: &PodView) -> Option<&Arrival<'a>> {
        let of_node = self.by_node.get(pod.node.as_deref()?)?;
        of_node.arrived.get(pod.uid.as_str())
    }

    /// When the arrival at this attempt, or at a later one, was received.
    pub fn received_at(&self, pod: &PodView, attempt: i64) -> Option<DateTime<Utc>> {
        let arrival = self.of(pod).filter(|a| a.attempt >= attempt)?;
        Some(arrival.received_at)
    }

    pub fn is_late(&self, pod: &PodView, attempt: i64) -> bool {
        let of_node = pod.node.as_deref().and_then(|n| self.by_node.get(n));
        of_node.is_some_and(|n| n.late.get(pod.uid.as_str()) == Some(&attempt))
    }
}

//! Arrivals of members at an attempt, as reported by agents.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use crate::observed::Observed;
use crate::pods::PodView;

pub(crate) struct Arrivals<'a> {
    by_pod: BTreeMap<&'a str, Arrival<'a>>,
    /// Pods reported as not arriving, with the reporting node and the attempt.
    late: BTreeMap<&'a str, (&'a str, i64)>,
}

/// The last arrival of a pod.
pub(crate) struct Arrival<'a> {
    node: &'a str,
    pub attempt: i64,
    /// Runtime id of its training container then.
    pub container: &'a str,
    /// Its restart count then.
    pub restarts: i32,
    heard_at: DateTime<Utc>,
}

impl<'a> Arrivals<'a> {
    pub fn new(view: Observed<'a>) -> Self {
        let mut all = Self {
            by_pod: BTreeMap::new(),
            late: BTreeMap::new(),
        };
        for (node, agent) in view.agents() {
            let arrivals = agent.status.arrivals.iter().zip(&agent.heard_at);
            for (domain, heard_at) in arrivals.filter(|(a, _)| a.workload_uid == view.uid()) {
                for pod in &domain.pods {
                    let arrival = Arrival {
                        node,
                        attempt: domain.attempt,
                        container: &pod.container_id,
                        restarts: pod.restarts,
                        heard_at: *heard_at,
                    };
                    all.by_pod.insert(pod.pod_uid.as_str(), arrival);
                }
                for uid in &domain.late {
                    all.late
                        .insert(uid.as_str(), (node.as_str(), domain.attempt));
                }
            }
        }
        all
    }

    pub fn of(&self, pod: &PodView) -> Option<&Arrival<'a>> {
        let arrival = self.by_pod.get(pod.uid.as_str())?;
        (pod.node.as_deref() == Some(arrival.node)).then_some(arrival)
    }

    /// When the arrival at the attempt (or a later one) was received.
    pub fn heard_at(&self, pod: &PodView, attempt: i64) -> Option<DateTime<Utc>> {
        let arrival = self.of(pod).filter(|a| a.attempt >= attempt)?;
        Some(arrival.heard_at)
    }

    pub fn is_late(&self, pod: &PodView, attempt: i64) -> bool {
        let said = self.late.get(pod.uid.as_str());
        said.is_some_and(|(node, at)| pod.node.as_deref() == Some(node) && *at == attempt)
    }
}

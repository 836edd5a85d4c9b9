//! What agents say of the way of their members to an attempt.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use crate::observed::Observed;
use crate::pods::PodView;

/// What agents say about the pods of a workload, by pod UID.
pub(crate) struct Arrivals<'a> {
    by_pod: BTreeMap<&'a str, Arrival<'a>>,
    /// Pods that do not come: the node of the agent that says so, and the attempt.
    late: BTreeMap<&'a str, (&'a str, i64)>,
}

/// The training container that has come to an attempt.
struct Arrival<'a> {
    node: &'a str,
    attempt: i64,
    container: &'a str,
    restarts: i32,
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

    /// What the agent of a pod's node says of it.
    fn of(&self, pod: &PodView) -> Option<&Arrival<'a>> {
        let arrival = self.by_pod.get(pod.uid.as_str())?;
        (pod.node.as_deref() == Some(arrival.node)).then_some(arrival)
    }

    /// The training container that has come to the attempt (or a later one): its runtime id, and how
    /// often the kubelet had restarted it before.
    pub fn container(&self, pod: &PodView, attempt: i64) -> Option<(&'a str, i32)> {
        let arrival = self.of(pod).filter(|a| a.attempt >= attempt)?;
        Some((arrival.container, arrival.restarts))
    }

    /// Attempt that a pod has come to last, and how often its training container had been restarted
    /// before that.
    pub fn last(&self, pod: &PodView) -> Option<(i64, i32)> {
        let arrival = self.of(pod)?;
        Some((arrival.attempt, arrival.restarts))
    }

    /// When it was heard that a pod has come to the attempt (or a later one).
    pub fn heard_at(&self, pod: &PodView, attempt: i64) -> Option<DateTime<Utc>> {
        let arrival = self.of(pod).filter(|a| a.attempt >= attempt)?;
        Some(arrival.heard_at)
    }

    /// Whether the agent of its node says that a pod does not come to the attempt.
    pub fn is_late(&self, pod: &PodView, attempt: i64) -> bool {
        let said = self.late.get(pod.uid.as_str());
        said.is_some_and(|(node, at)| pod.node.as_deref() == Some(node) && *at == attempt)
    }
}

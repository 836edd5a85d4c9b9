//! Input of all stages, and the time of the next cycle.

use std::cell::Cell;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::Outlook;
use lockstep_engine::{Amounts, NodeIx};
use lockstep_model::{Budget, Quota, Resources, Snapshot, Weights};

use crate::settings::SchedulerSettings;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub cluster: &'a Snapshot,
    pub budgets: &'a [Arc<Budget>],
    pub quotas: &'a [Arc<Quota>],
    /// Queue weights of namespaces.
    pub weights: &'a Weights,
    pub settings: &'a SchedulerSettings,
    /// Nodes that gangs get only if they do not fit without them, the best first.
    pub last_choice: &'a [NodeIx],
    pub now: DateTime<Utc>,
    pub wake: &'a Wake,
}

/// Earliest time at which a cycle is needed without changes. All stages record such times.
#[derive(Debug, Default)]
pub(crate) struct Wake(Cell<Option<DateTime<Utc>>>);

impl Context<'_> {
    pub fn amounts(&self, requests: &Resources) -> Amounts {
        self.cluster.dims().amounts(requests)
    }

    pub fn ago(&self, time: Duration) -> DateTime<Utc> {
        let time = TimeDelta::from_std(time).unwrap_or(TimeDelta::MAX);
        let ago = self.now.checked_sub_signed(time);
        ago.unwrap_or(DateTime::<Utc>::MIN_UTC)
    }

    /// True if `wait` has passed since `since`. Otherwise records the end of the wait.
    pub fn due(&self, since: DateTime<Utc>, wait: Duration) -> bool {
        let at = since + TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX);
        if self.now >= at {
            return true;
        }
        self.wake.at(at);
        false
    }
}

/// Nodes with likely faults, then nodes that leave within the horizon, the latest deadline first.
pub(crate) fn last_choice(
    cluster: &Snapshot,
    settings: &SchedulerSettings,
    now: DateTime<Utc>,
) -> Vec<NodeIx> {
    let horizon = TimeDelta::from_std(settings.move_horizon).unwrap_or(TimeDelta::MAX);
    let end = now.checked_add_signed(horizon);
    let rank = |node: NodeIx| match cluster.node(node)?.state.outlook {
        Outlook::Healthy | Outlook::Faulty => None,
        Outlook::Suspect => Some((0, None)),
        Outlook::Leaving { deadline: None } => Some((2, None)),
        Outlook::Leaving { deadline: Some(at) } => {
            let is_near = end.is_none_or(|end| at <= end);
            is_near.then_some((1, Some(Reverse(at))))
        }
    };
    let nodes = 0..cluster.node_count();
    let mut ranked: Vec<_> = nodes.filter_map(|node| Some((rank(node)?, node))).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, node)| node).collect()
}

impl Wake {
    pub fn at(&self, at: DateTime<Utc>) {
        let earliest = self.0.get().map_or(at, |earlier| earlier.min(at));
        self.0.set(Some(earliest));
    }

    pub fn after(&self, now: DateTime<Utc>) -> Option<Duration> {
        self.0
            .get()
            .map(|at| (at - now).to_std().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use lockstep_api::NodeState;
    use lockstep_model::{ClusterModel, Node};

    use super::*;

    #[test]
    fn faults_are_better_than_announced_ends_and_late_ends_than_early_ones() {
        let now = DateTime::UNIX_EPOCH;
        let leaving = |hours| Outlook::Leaving {
            deadline: Some(now + TimeDelta::hours(hours)),
        };
        let outlooks = [
            ("early", leaving(1)),
            ("beyond", leaving(25)),
            ("unknown", Outlook::Leaving { deadline: None }),
            ("faulty", Outlook::Faulty),
            ("late", leaving(23)),
            ("suspect", Outlook::Suspect),
            ("healthy", Outlook::Healthy),
        ];
        let mut model = ClusterModel::default();
        for (name, outlook) in outlooks {
            let state = NodeState {
                outlook,
                ..NodeState::default()
            };
            model.upsert_node(Node {
                state,
                ..Node::bare(name.parse().unwrap())
            });
        }
        let cluster = model.snapshot();
        let order = last_choice(&cluster, &SchedulerSettings::default(), now);
        let names = order.iter().filter_map(|&ix| cluster.node_name(ix));
        let names: Vec<&str> = names.map(lockstep_api::ids::NodeName::as_str).collect();
        assert_eq!(names, ["suspect", "late", "early", "unknown"]);
    }
}

//! Work that holds capacity temporarily: it can end by itself, is terminating, or can be evicted.

use std::collections::HashSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_engine::{Amounts, Blocker, NodeIx, NodeSet};

use crate::occupancy::{ByRequests, Occupancy, PlacedGang};
use crate::pdb::Budget;
use crate::pod::Pod;
use crate::resources::Resources;
use crate::victims::VictimFilter;

/// Temporary capacity of a pod, or of a member without a pod.
#[derive(Clone, Debug)]
pub struct PassingWork {
    node: NodeIx,
    amounts: Amounts,
    /// The caller's number of its gang.
    gang: Option<usize>,
    end: WorkEnd,
    pod: Option<Arc<Pod>>,
    /// True if a disruption budget does not permit the eviction of its pod now.
    guarded: bool,
    /// Node for which its pod waits. `None`: the pod is bound, or does not exist.
    waits: Option<AwaitedNode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkEnd {
    /// Terminating; ends at this time at the latest.
    Leaving(DateTime<Utc>),
    /// Ends by itself, at this time at the latest if known.
    ByItself(Option<DateTime<Utc>>),
    /// Ends only by eviction.
    ByEviction,
}

/// Node of an unbound pod.
#[derive(Clone, Copy, Debug)]
enum AwaitedNode {
    /// The pod can use no other node.
    Pinned,
    /// Kept free for the pod, which has this priority.
    Nominated(i32),
}

#[derive(Clone, Copy, Debug)]
pub struct BlockedGang<'a> {
    /// The caller's number of the gang.
    pub number: usize,
    pub priority: i32,
    /// Work that the gang may evict. `None`: no work.
    pub victims: Option<VictimFilter<'a>>,
}

impl Occupancy<'_> {
    /// All work that holds capacity temporarily, by node.
    pub fn passing_work(&self) -> Vec<PassingWork> {
        let mut out = Vec::new();
        let mut counted: HashSet<*const Pod> = HashSet::new();
        let (mut amounts, mut in_reach) = (ByRequests::default(), ByRequests::default());
        for (number, gang) in self.gangs.iter().enumerate() {
            counted.extend(gang.pods.iter().map(Arc::as_ptr));
            for held in &*gang.holds(self.cluster) {
                // If all pods of a gang are bound, none waits or is terminating.
                let pod = held.pod.as_deref().filter(|_| gang.bound.is_none());
                out.push(PassingWork {
                    node: held.node,
                    amounts: amounts.of(&held.requests, |r| self.amounts(r)).clone(),
                    gang: Some(number),
                    end: self.end_of_member(gang, pod),
                    waits: pod.and_then(waits),
                    pod: None,
                    guarded: false,
                });
            }
        }
        let is_evicted = self.is_evicted();
        let spent = self.budgets.iter().filter(|budget| budget.allowed <= 0);
        let spent: Vec<&Arc<Budget>> = spent.collect();
        for listed in self.cluster.listed_pods() {
            let (node, pod) = (listed.node, &listed.pod);
            if listed.endless && !is_evicted(listed) {
                let rules = &self.rules.victims;
                let reach = |requests: &Resources| rules.reach(requests);
                let in_scope = listed.evictable && *in_reach.of(&listed.requests, reach);
                if !in_scope || rules.leave_alone(pod) {
                    continue;
                }
            }
            if counted.contains(&Arc::as_ptr(pod)) {
                continue;
            }
            out.push(PassingWork {
                node,
                amounts: amounts.of(&pod.requests, |r| self.amounts(r)).clone(),
                gang: None,
                end: self.end_of_pod(pod),
                waits: waits(pod),
                pod: Some(Arc::clone(pod)),
                guarded: listed.endless && spent.iter().any(|budget| budget.guards(pod)),
            });
        }
        out.sort_by_cached_key(|work| work.node);
        out
    }

    fn end_of_member(&self, gang: &PlacedGang<'_>, pod: Option<&Pod>) -> WorkEnd {
        if self.goes(gang) {
            return WorkEnd::Leaving(self.now);
        }
        match pod.and_then(|p| p.terminating) {
            Some(end) => self.terminating(end),
            None => WorkEnd::ByItself(gang.ends),
        }
    }

    fn end_of_pod(&self, pod: &Pod) -> WorkEnd {
        if self.evicting.contains(pod.uid.as_str()) {
            WorkEnd::Leaving(self.now)
        } else if let Some(end) = pod.terminating {
            self.terminating(end)
        } else if pod.may_end {
            WorkEnd::ByItself(pod.ends)
        } else {
            WorkEnd::ByEviction
        }
    }

    /// A pod past its grace period has no known end time.
    fn terminating(&self, end: DateTime<Utc>) -> WorkEnd {
        match self.rules.waited_for(end, self.now) {
            Some(_) => WorkEnd::Leaving(end),
            None => WorkEnd::ByItself(None),
        }
    }
}

impl PassingWork {
    /// This work as a blocker of the gang. `None` if it does not block the gang, or does not end.
    ///
    /// `promised`: time by which a gang has promised to end to this gang.
    fn as_blocker(
        &self,
        blocked: BlockedGang<'_>,
        promised: &impl Fn(usize) -> Option<DateTime<Utc>>,
    ) -> Option<Blocker> {
        let own = self.gang == Some(blocked.number);
        // Nominations of lower priority do not block the gang. Its own unbound pods do not either.
        let lesser = |on| matches!(on, AwaitedNode::Nominated(p) if p < blocked.priority);
        if self.waits.is_some_and(|on| own || lesser(on)) {
            return None;
        }
        let ends = match self.end {
            WorkEnd::Leaving(end) => Some(end),
            WorkEnd::ByItself(_) if own => return None,
            WorkEnd::ByItself(end) => {
                let promised = self.gang.and_then(promised);
                end.into_iter().chain(promised).min()
            }
            WorkEnd::ByEviction => {
                let pod = self.pod.as_deref()?;
                let filter = blocked.victims?;
                let guarded = self.guarded && !filter.beyond_budgets;
                if pod.priority >= blocked.priority || guarded || !filter.admits_pod(pod) {
                    return None;
                }
                None
            }
        };
        Some(Blocker {
            node: self.node,
            request: self.amounts.clone(),
            ends: ends.map(|end| end.timestamp_millis()),
        })
    }
}

fn waits(pod: &Pod) -> Option<AwaitedNode> {
    let awaited = if pod.pinned.is_some() {
        AwaitedNode::Pinned
    } else {
        AwaitedNode::Nominated(pod.priority)
    };
    pod.bound.is_none().then_some(awaited)
}

/// Temporary blockers of a gang, on these nodes or on all. Ends are in milliseconds. `work` is
/// sorted by node.
pub fn blockers(
    work: &[PassingWork],
    blocked: BlockedGang<'_>,
    on: Option<&NodeSet>,
    promised: impl Fn(usize) -> Option<DateTime<Utc>>,
) -> Vec<Blocker> {
    let as_blocker = |work: &PassingWork| work.as_blocker(blocked, &promised);
    let Some(nodes) = on else {
        return work.iter().filter_map(as_blocker).collect();
    };
    nodes
        .ones()
        .flat_map(|node| work_on(work, node))
        .filter_map(as_blocker)
        .collect()
}

fn work_on(work: &[PassingWork], node: NodeIx) -> impl Iterator<Item = &PassingWork> {
    let behind = &work[work.partition_point(|w| w.node < node)..];
    behind.iter().take_while(move |w| w.node == node)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rules::Rules;
    use crate::test_support::{mk_node, mk_pod};
    use crate::victims::{VictimRules, VictimScope};
    use crate::{ClusterModel, Snapshot};

    /// Accelerators and end (in seconds) of each pod that blocks a gang of this priority
    /// temporarily.
    fn passing(pods: Vec<Pod>, priority: i32, may_evict: bool) -> Vec<(i64, Option<i64>)> {
        let mut model = ClusterModel::default();
        model.upsert_node(mk_node("n1", 64));
        for pod in pods {
            model.upsert_pod(pod);
        }
        let cluster: Snapshot = model.snapshot();
        let (rules, evicting) = (Rules::default(), BTreeSet::new());
        let occupancy = Occupancy {
            cluster: &cluster,
            budgets: &[],
            rules: &rules,
            now: at(1000),
            evicting: &evicting,
            gangs: Vec::new(),
        };
        let any = VictimRules {
            scope: VictimScope::Any,
            ..VictimRules::default()
        };
        let wanted = BTreeSet::new();
        let nobody = BTreeSet::new();
        let blocked = BlockedGang {
            number: 0,
            priority,
            victims: may_evict.then_some(VictimFilter {
                rules: &any,
                wanted: &wanted,
                beyond_budgets: true,
                refused: &nobody,
            }),
        };
        let gpu = cluster.dims().len() - 1;
        let found = blockers(&occupancy.passing_work(), blocked, None, |_| None);
        let seconds = |b: &Blocker| (b.request[gpu], b.ends.map(|ms| ms / 1000));
        let mut found: Vec<_> = found.iter().map(seconds).collect();
        found.sort_unstable();
        found
    }

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    #[test]
    fn services_stay_unless_they_may_be_evicted_and_daemons_stay_whatever_happens() {
        let service = Pod {
            priority: 5,
            ..mk_pod("service", "n1", 1)
        };
        let daemon = Pod {
            protected: true,
            ..mk_pod("daemon", "n1", 2)
        };
        let pods = || vec![service.clone(), daemon.clone()];
        assert_eq!(passing(pods(), 10, true), [(1, None)]);
        assert_eq!(passing(pods(), 5, true), []);
        assert_eq!(passing(pods(), 10, false), []);
    }

    #[test]
    fn a_job_ends_by_itself_at_its_deadline_where_it_has_one() {
        let job = |name: &str, gpus, ends| Pod {
            may_end: true,
            priority: 1000,
            ends,
            ..mk_pod(name, "n1", gpus)
        };
        let pods = vec![job("a", 1, None), job("b", 2, Some(at(1500)))];
        assert_eq!(passing(pods, 0, false), [(1, None), (2, Some(1500))]);
    }

    #[test]
    fn terminating_pods_of_any_kind_free_capacity_and_overdue_pods_are_not_awaited() {
        let ending = |name: &str, gpus, end| Pod {
            terminating: Some(at(end)),
            ..mk_pod(name, "n1", gpus)
        };
        let pods = vec![ending("soon", 1, 1010), ending("stuck", 2, 900)];
        assert_eq!(passing(pods, 0, false), [(1, Some(1010)), (2, None)]);
    }

    #[test]
    fn what_is_nominated_for_lower_priority_is_not_in_the_way() {
        let nominated = Pod {
            bound: None,
            nominated: "n1".parse().ok(),
            may_end: true,
            priority: 5,
            ..mk_pod("p", "n1", 1)
        };
        assert_eq!(passing(vec![nominated.clone()], 10, true), []);
        assert_eq!(passing(vec![nominated], 5, true), [(1, None)]);
    }
}

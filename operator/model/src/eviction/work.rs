//! Work that holds capacity temporarily: it can end by itself, is terminating, or can be evicted.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_engine::{Amounts, Blocker, NodeIx, NodeSet};

use crate::cluster::Snapshot;
use crate::cluster::pod_list::ListedPod;
use crate::eviction::occupancy::{ByRequests, Occupancy, PlacedGang};
use crate::eviction::victims::{VictimFilter, VictimRules};
use crate::pods::pdb::{Budget, Budgets};
use crate::pods::pod::Pod;
use crate::pods::resources::Resources;

/// Temporary capacity of a pod, or of a member without a pod.
#[derive(Clone, Debug)]
pub struct PassingWork {
    node: NodeIx,
    amounts: Amounts,
    /// The caller's number of its gang.
    gang: Option<usize>,
    end: WorkEnd,
    /// Node for which its pod waits. `None`: the pod is bound, or does not exist.
    waits: Option<AwaitedNode>,
}

#[derive(Clone, Debug)]
enum WorkEnd {
    /// Terminating; ends at this time at the latest.
    Leaving(DateTime<Utc>),
    /// Ends by itself, at this time at the latest if known.
    ByItself(Option<DateTime<Utc>>),
    ByEviction(Arc<Evictable>),
}

/// Endless pods that may be evicted together: a pod, or a unit that is evicted whole.
#[derive(Clone, Debug)]
struct Evictable {
    /// Requests of each pod.
    held: Vec<Arc<Resources>>,
    /// Priority as a victim.
    priority: i32,
    /// True if disruption budgets do not permit the eviction now.
    guarded: bool,
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
                });
            }
        }
        let is_evicted = self.is_evicted();
        let rules = &self.rules.victims;
        let budgets = Budgets::new(self.budgets);
        let units = self.evictable_units(&budgets);
        for listed in self.cluster.listed_pods() {
            let (node, pod) = (listed.node, &listed.pod);
            let mut end = self.end_of_pod(pod);
            if listed.endless && !is_evicted(listed) {
                let unit = Some(pod).filter(|_| listed.in_unit);
                let unit = unit.and_then(|pod| self.cluster.unit(pod));
                let evictable = if let Some(unit) = unit.filter(|unit| unit.whole) {
                    let unit = units.get(&(&*pod.namespace, unit.key)).cloned();
                    unit.filter(|_| listed.evictable)
                } else {
                    let in_scope = *in_reach.of(&listed.requests, |held| rules.reach(held));
                    let evictable = in_scope && may_go(listed, rules);
                    evictable.then(|| Arc::new(self.evicted_together(&[listed], &budgets)))
                };
                let Some(evictable) = evictable else {
                    continue;
                };
                end = WorkEnd::ByEviction(evictable);
            }
            if counted.contains(&Arc::as_ptr(pod)) {
                continue;
            }
            out.push(PassingWork {
                node,
                amounts: amounts.of(&pod.requests, |r| self.amounts(r)).clone(),
                gang: None,
                end,
                waits: waits(pod),
            });
        }
        out.sort_by_cached_key(|work| work.node);
        out
    }

    /// Units that are evicted whole, if all their pods may be evicted.
    fn evictable_units(&self, budgets: &Budgets<'_>) -> BTreeMap<(&str, &str), Arc<Evictable>> {
        let rules = &self.rules.victims;
        let units = self
            .whole_units()
            .into_iter()
            .filter(|(_, pods)| {
                let evicted = |l: &&ListedPod| self.is_being_evicted(&l.pod);
                let mut in_scope = pods.iter().map(|l| rules.reach(&l.requests));
                in_scope.any(|reached| reached)
                    && pods.iter().all(|l| may_go(l, rules))
                    && !pods.iter().any(evicted)
            })
            .map(|(key, pods)| (key, Arc::new(self.evicted_together(&pods, budgets))));
        units.collect()
    }

    fn evicted_together(&self, pods: &[&ListedPod], budgets: &Budgets<'_>) -> Evictable {
        let priorities = pods.iter().map(|l| self.victim_priority(l));
        Evictable {
            held: pods.iter().map(|l| Arc::clone(&l.requests)).collect(),
            priority: priorities.max().unwrap_or(i32::MAX),
            guarded: budgets.forbid(pods.iter().map(|l| &*l.pod)),
        }
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
        } else {
            WorkEnd::ByItself(pod.ends)
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
        let ends = match &self.end {
            WorkEnd::Leaving(end) => Some(*end),
            WorkEnd::ByItself(_) if own => return None,
            WorkEnd::ByItself(end) => {
                let promised = self.gang.and_then(promised);
                end.iter().copied().chain(promised).min()
            }
            WorkEnd::ByEviction(unit) => {
                let filter = blocked.victims?;
                let guarded = unit.guarded && !filter.beyond_budgets;
                let mut held = unit.held.iter();
                let in_scope = held.any(|requests| filter.holds_in_scope(requests));
                if unit.priority >= blocked.priority || guarded || !in_scope {
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

/// True if neither the pod nor the rules forbid its eviction.
fn may_go(listed: &ListedPod, rules: &VictimRules) -> bool {
    listed.evictable && !rules.leave_alone(&listed.pod)
}

/// True if budgets permit and forbid the same evictions as before. Most changes are of budgets of
/// pods that are no victims.
pub fn permit_alike(
    cluster: &Snapshot,
    rules: &VictimRules,
    before: &[Arc<Budget>],
    now: &[Arc<Budget>],
) -> bool {
    let of_same_pods = |a: &Budget, b: &Budget| {
        (&a.namespace, &a.name, &a.selector) == (&b.namespace, &b.name, &b.selector)
    };
    let both = || before.iter().zip(now);
    if before.len() != now.len() || !both().all(|(a, b)| of_same_pods(a, b)) {
        return false;
    }
    let changed: Vec<&Budget> = both()
        .filter(|(a, b)| a.allowed != b.allowed)
        .map(|(_, budget)| &**budget)
        .collect();
    if changed.is_empty() {
        return true;
    }
    let (before, now) = (Budgets::new(before), Budgets::new(now));
    let may_go = |listed: &&ListedPod| listed.endless && may_go(listed, rules);
    let mut concerned = cluster.listed_pods().filter(may_go);
    concerned.all(|listed| {
        let pod = &*listed.pod;
        !changed.iter().any(|budget| budget.guards(pod))
            || (!cluster.goes_whole(pod) && before.forbid([pod]) == now.forbid([pod]))
    })
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

    use lockstep_api::key::Key;
    use lockstep_api::names::labels::EVICTABLE;

    use super::*;
    use crate::ClusterModel;
    use crate::eviction::rules::Rules;
    use crate::eviction::victims::{VictimRules, VictimScope};
    use crate::pods::foreign::{PodUnit, UnitMode};
    use crate::pods::native_group::{NativeGroup, NativeKind};
    use crate::test_support::{mk_node, mk_pod};

    /// Accelerators and end (in seconds) of each pod that blocks a gang of this priority
    /// temporarily.
    fn passing(pods: Vec<Pod>, priority: i32, may_evict: bool) -> Vec<(i64, Option<i64>)> {
        let mut model = ClusterModel::default();
        model.upsert_node(mk_node("n1", 64));
        for pod in pods {
            model.upsert_pod(pod);
        }
        passing_in(&model.snapshot(), priority, may_evict)
    }

    fn passing_in(cluster: &Snapshot, priority: i32, may_evict: bool) -> Vec<(i64, Option<i64>)> {
        let (rules, evicting) = (Rules::default(), BTreeSet::new());
        let occupancy = Occupancy {
            cluster,
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
        let requested = BTreeSet::new();
        let nobody = BTreeSet::new();
        let blocked = BlockedGang {
            number: 0,
            priority,
            victims: may_evict.then_some(VictimFilter {
                rules: &any,
                requested: &requested,
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

    /// A pod of a unit that is evicted whole.
    fn of_unit(name: &str, gpus: i64) -> Pod {
        Pod {
            unit: Some(PodUnit {
                key: "unit".into(),
                mode: UnitMode::Whole,
            }),
            ..mk_pod(name, "n1", gpus)
        }
    }

    #[test]
    fn a_unit_that_is_evicted_whole_stays_if_one_of_its_pods_may_not_be_evicted() {
        let with = |other: Pod| passing(vec![of_unit("a", 1), other], 10, true);
        assert_eq!(with(of_unit("b", 2)), [(1, None), (2, None)]);
        let protected = Pod {
            protected: true,
            ..of_unit("b", 2)
        };
        assert_eq!(with(protected), []);
        let higher = Pod {
            priority: 10,
            ..of_unit("b", 2)
        };
        assert_eq!(with(higher), []);
        let opted_out = Pod {
            labels: Arc::new([(EVICTABLE.to_owned(), "false".to_owned())].into()),
            ..of_unit("b", 2)
        };
        assert_eq!(with(opted_out), []);
    }

    #[test]
    fn a_pod_of_a_native_group_has_the_priority_of_the_group() {
        let mut model = ClusterModel::default();
        model.upsert_node(mk_node("n1", 64));
        model.upsert_pod(Pod {
            unit: Some(PodUnit {
                key: "group".into(),
                mode: UnitMode::Native,
            }),
            ..mk_pod("a", "n1", 1)
        });
        let group = NativeGroup {
            priority: Some(20),
            ..NativeGroup::default()
        };
        let key = Key::new("ml", "group");
        model.set_native_group(NativeKind::PodGroup, &key, Some(group));
        let cluster = model.snapshot();
        assert_eq!(passing_in(&cluster, 20, true), []);
        assert_eq!(passing_in(&cluster, 21, true), [(1, None)]);
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

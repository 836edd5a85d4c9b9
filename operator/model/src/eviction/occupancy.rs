//! Held capacity, and capacity that is about to become free.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::member::Member;
use lockstep_engine::queue;
use lockstep_engine::{Amounts, Cluster, NodeIx, NodeSet};

use crate::cluster::Snapshot;
use crate::cluster::pod_list::{ListedPod, Tags};
use crate::eviction::cost::SavedWork;
use crate::eviction::rules::Rules;
use crate::eviction::units::Occupant;
use crate::eviction::victims::VictimRules;
use crate::pods::pdb::Budget;
use crate::pods::pod::Pod;
use crate::pods::resources::Resources;

/// A gang with the capacity it holds.
#[derive(Clone, Debug)]
pub struct PlacedGang<'a> {
    pub uid: &'a str,
    pub namespace: &'a str,
    pub workload_uid: &'a str,
    pub priority: i32,
    /// Priority as a victim while the gang runs; at least `priority`.
    pub preemption_priority: Option<i32>,
    /// True if the evicted gang may preempt other work when it is queued again.
    pub preempts: bool,
    /// Pods that preemption evicts together.
    pub disruption: Disruption,
    /// Labels of its pod templates. They can exclude the gang from preemption.
    pub template_labels: Vec<&'a BTreeMap<String, String>>,
    /// True if Kueue manages its workload.
    pub in_kueue: bool,
    /// True if the gang is finished, has released its placement, or is being preempted.
    pub leaves: bool,
    pub saved: SavedWork,
    pub pods: &'a [Arc<Pod>],
    /// Its occupants, if all members are known to have bound pods that are not terminating.
    pub bound: Option<&'a [Occupant]>,
    /// UIDs of unbound pods on nodes that their members no longer have. They will be deleted.
    pub stray: HashSet<&'a str>,
    /// Assigned members whose pods hold no capacity yet.
    pub reserved: Vec<Occupant>,
    /// Nodes where the gang could restart, for the cost of follow-on evictions. `None`: every node.
    pub eligible: Option<Arc<NodeSet>>,
    /// Latest end of the gang. `None`: unknown.
    pub ends: Option<DateTime<Utc>>,
    /// UIDs of pod groups to which the gang has promised an earlier end. They may evict it at any
    /// priority.
    pub overstays: &'a [String],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disruption {
    /// The whole gang or no pod.
    Whole,
    /// Single pods, but the whole gang restarts after each eviction.
    Together,
    /// Single pods, independently.
    Apart,
}

impl Disruption {
    /// `whole`: evicted whole or not at all. `basic`: policy Basic.
    pub fn of(whole: bool, basic: bool) -> Self {
        match (whole, basic) {
            (true, _) => Self::Whole,
            (false, false) => Self::Together,
            (false, true) => Self::Apart,
        }
    }
}

/// Node capacity that kube-scheduler keeps for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nomination {
    node: NodeIx,
    priority: i32,
    amounts: Amounts,
}

#[derive(Clone, Debug)]
pub struct Occupancy<'a> {
    pub cluster: &'a Snapshot,
    pub budgets: &'a [Arc<Budget>],
    pub rules: &'a Rules,
    pub now: DateTime<Utc>,
    /// UIDs of victims (pods and pod groups) of preemptions in progress.
    pub evicting: &'a BTreeSet<String>,
    /// All gangs. Their index is their number in [`UnitTable::sources`](crate::UnitTable::sources).
    pub gangs: Vec<PlacedGang<'a>>,
}

/// Capacity that is about to become free.
#[derive(Clone, Debug, Default)]
pub struct Leaving {
    pub held: Vec<(NodeIx, Amounts)>,
    /// Next time at which a terminating pod becomes overdue.
    pub until: Option<DateTime<Utc>>,
}

impl PlacedGang<'_> {
    /// Its pods that hold capacity, and reservations for its members.
    pub fn holds(&self, cluster: &Snapshot) -> Cow<'_, [Occupant]> {
        if let Some(held) = self.bound {
            return Cow::Borrowed(held);
        }
        let mut out = self.reserved.clone();
        let pods = self.pods.iter();
        out.extend(pods.filter_map(|pod| Occupant::of(pod, cluster)));
        Cow::Owned(out)
    }

    /// True if a label of its templates or pods, or a grace period, excludes the gang from
    /// preemption.
    pub fn spared(&self, rules: &VictimRules) -> bool {
        if self
            .template_labels
            .iter()
            .any(|labels| rules.spare(labels))
        {
            return true;
        }
        // Pods of a gang share their labels.
        let mut alive = self.pods.iter().filter(|pod| pod.alive());
        if alive.clone().any(|pod| rules.outlast(pod)) {
            return true;
        }
        let labels = alive
            .by_ref()
            .map(|pod| (Arc::as_ptr(&pod.labels), &pod.labels));
        let different: HashMap<_, _> = labels.collect();
        different.values().any(|labels| rules.spare(labels))
    }

    /// Priority as a victim; may rise when its pods start.
    pub fn victim_priority(&self) -> i32 {
        queue::victim_priority(
            self.priority,
            self.preemption_priority
                .filter(|_| self.started().is_some()),
        )
    }

    /// Priority as a victim of this preemptor. Below `priority` if the gang has overstayed its
    /// promise to the preemptor.
    pub(crate) fn counts_for(&self, preemptor: Option<&str>, priority: i32) -> i32 {
        let own = self.victim_priority();
        if preemptor.is_some_and(|uid| self.overstays.iter().any(|o| o == uid)) {
            own.min(priority.saturating_sub(1))
        } else {
            own
        }
    }

    pub(crate) fn started(&self) -> Option<DateTime<Utc>> {
        self.pods
            .iter()
            .filter(|p| p.bound.is_some() && p.alive())
            .filter_map(|p| p.started)
            .min()
    }
}

/// Reservations of assigned members whose pods do not hold the capacity yet.
pub fn reservations<'s>(
    cluster: &Snapshot,
    assigned: impl Iterator<Item = (&'s Member, &'s str)>,
    taken: impl Fn(&Member, &str) -> bool,
    mut requests: impl FnMut(&Member) -> Option<Arc<Resources>>,
) -> Vec<Occupant> {
    let missing = assigned.filter(|(member, node)| !taken(member, node));
    missing
        .filter_map(|(member, node)| {
            Some(Occupant {
                node: cluster.ordinal(node)?,
                requests: requests(member)?,
                pod: None,
            })
        })
        .collect()
}

/// Capacity that kube-scheduler keeps free, with priorities.
pub fn nominations(cluster: &Snapshot) -> Vec<Nomination> {
    let parts = cluster.pod_parts().filter(|part| part.unbound);
    let listed = parts.flat_map(|part| &part.pods).filter(|p| !p.bound);
    let waiting = listed.filter(|p| p.pod.pinned.is_none());
    waiting
        .map(|p| Nomination {
            node: p.node,
            priority: p.priority,
            amounts: cluster.dims().amounts(&p.requests),
        })
        .collect()
}

/// Frees the nominations of lower priority, which kube-scheduler ignores too.
pub fn ignore_lesser(free: &mut Cluster, nominations: &[Nomination], priority: i32) {
    for nominated in nominations.iter().filter(|n| n.priority < priority) {
        free.remove_pod(nominated.node, &nominated.amounts);
    }
}

/// True if one of these workloads (namespace and UID) owns the pod.
fn is_owned_by_one_of(workloads: &HashSet<(&str, &str)>, pod: &Pod) -> bool {
    let owner = pod.owner.as_ref();
    owner.is_some_and(|o| workloads.contains(&(&*pod.namespace, o.as_str())))
}

/// Cache of one value per request object. Many pods share their requests.
#[derive(Debug)]
pub(crate) struct ByRequests<T> {
    entries: Vec<(*const Resources, T)>,
    at: HashMap<*const Resources, usize>,
    /// Index of the last result. Neighbours in the list of pods mostly have equal requests.
    last: usize,
}

impl<T> Default for ByRequests<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            at: HashMap::new(),
            last: 0,
        }
    }
}

impl<T> ByRequests<T> {
    pub fn of(&mut self, requests: &Arc<Resources>, compute: impl FnOnce(&Resources) -> T) -> &T {
        let key = Arc::as_ptr(requests);
        if self
            .entries
            .get(self.last)
            .is_none_or(|(last, _)| *last != key)
        {
            let entries = &mut self.entries;
            self.last = *self.at.entry(key).or_insert_with(|| {
                entries.push((key, compute(requests)));
                entries.len() - 1
            });
        }
        &self.entries[self.last].1
    }
}

impl<'a> Occupancy<'a> {
    /// Capacity of terminating gangs, of victims of preemptions in progress, and of terminating
    /// pods [worth waiting for](Rules::waited_for).
    pub fn leaving(&self) -> Leaving {
        let mut out = Leaving::default();
        let mut counted: HashSet<&str> = HashSet::new();
        for gang in self.gangs.iter().filter(|t| self.goes(t)) {
            counted.extend(
                gang.pods
                    .iter()
                    .filter(|p| p.holds().is_some())
                    .map(|p| p.uid.as_str()),
            );
            let holds = gang.holds(self.cluster);
            let held = holds
                .iter()
                .filter(|h| h.pod.as_ref().is_none_or(|pod| self.is_in_time(pod)));
            out.held
                .extend(held.map(|h| (h.node, self.amounts(&h.requests))));
        }
        // Without victims, only parts with terminating pods matter.
        let all = !self.evicting.is_empty();
        let parts = self
            .cluster
            .pod_parts()
            .filter(|part| all || part.terminating);
        let is_evicted = self.is_evicted();
        for listed in parts.flat_map(|part| &part.pods) {
            let (node, pod) = (listed.node, &listed.pod);
            let evicted = is_evicted(listed);
            if !(evicted || listed.terminating) || counted.contains(pod.uid.as_str()) {
                continue;
            }
            if evicted && self.is_in_time(pod) {
                out.held.push((node, self.amounts(&pod.requests)));
            } else if let Some(end) = pod
                .terminating
                .and_then(|end| self.rules.waited_for(end, self.now))
            {
                out.held.push((node, self.amounts(&pod.requests)));
                out.until = Some(out.until.map_or(end, |until| until.min(end)));
            }
        }
        out
    }

    /// True if a pod is not terminating, or ends soon enough.
    fn is_in_time(&self, pod: &Pod) -> bool {
        let end = pod.terminating;
        end.is_none_or(|end| self.rules.in_time(end, self.now))
    }

    /// Pods of terminating gangs, and victims that disruption budgets still count as available.
    pub(crate) fn about_to_go(&self) -> impl Iterator<Item = &Pod> {
        let gangs = self.gangs.iter().filter(|gang| self.goes(gang));
        let members = gangs.flat_map(|gang| gang.pods.iter().map(|pod| &**pod));
        let listed = self.cluster.listed_pods();
        let evicted = listed
            .filter(|_| !self.budgets.is_empty() && !self.evicting.is_empty())
            .map(|listed| &*listed.pod)
            .filter(|pod| self.is_being_evicted(pod));
        let occupies_node = |pod: &&Pod| pod.bound.is_some() && pod.alive();
        members.chain(evicted).filter(occupies_node)
    }

    /// Upper bound of the free capacity for a gang of this priority, without any work of lower
    /// priority.
    pub fn free_at_most(&self, requester: Option<usize>, priority: i32, free: &Cluster) -> Cluster {
        let mut most = free.clone();
        let mut kinds = ByRequests::default();
        let preemptor = requester.and_then(|number| self.gangs.get(number));
        for (number, gang) in self.gangs.iter().enumerate() {
            let counts = gang.counts_for(preemptor.map(|p| p.uid), priority);
            if Some(number) == requester || counts >= priority || self.goes(gang) {
                continue;
            }
            for held in &*gang.holds(self.cluster) {
                let amounts = kinds.of(&held.requests, |requests| self.amounts(requests));
                most.remove_pod(held.node, amounts);
            }
        }
        for pod in self.foreign_pods(priority) {
            let amounts = kinds.of(&pod.requests, |requests| self.amounts(requests));
            most.remove_pod(pod.node, amounts);
        }
        most
    }

    /// Evictable pods outside gangs, below this priority.
    pub(crate) fn foreign_pods(&self, priority: i32) -> impl Iterator<Item = &'a ListedPod> {
        // An owner in another namespace does not protect a pod.
        let owners = self.gangs.iter().map(|t| (t.namespace, t.workload_uid));
        let managed: HashSet<(&str, &str)> = owners.collect();
        let (pods, is_evicted) = (self.cluster.listed_pods(), self.is_evicted());
        pods.filter(move |listed| {
            listed.evictable
                // Sufficient for most pods, and known without the group of the pod.
                && listed.priority < priority
                && self.victim_priority(listed) < priority
                && !is_evicted(listed)
                && !(listed.owned && is_owned_by_one_of(&managed, &listed.pod))
        })
    }

    /// As [`Snapshot::victim_priority`], faster for pods outside units.
    pub(crate) fn victim_priority(&self, listed: &ListedPod) -> i32 {
        if listed.in_unit {
            self.cluster.victim_priority(&listed.pod)
        } else {
            listed.priority
        }
    }

    pub(crate) fn goes(&self, gang: &PlacedGang<'_>) -> bool {
        gang.leaves || self.evicting.contains(gang.uid)
    }

    pub(crate) fn evictable(&self, pod: &Pod) -> bool {
        pod.bound.is_some() && pod.alive() && !pod.protected && !self.is_being_evicted(pod)
    }

    /// [`Self::is_being_evicted`], faster for many pods.
    pub(crate) fn is_evicted(&self) -> impl Fn(&ListedPod) -> bool {
        let named = Tags::of(self.evicting.iter().map(String::as_str));
        move |listed| named.contains(listed.tag) && self.is_being_evicted(&listed.pod)
    }

    /// True if a preemption in progress has this pod as a victim.
    pub(crate) fn is_being_evicted(&self, pod: &Pod) -> bool {
        !self.evicting.is_empty() && self.evicting.contains(pod.uid.as_str())
    }

    pub(crate) fn amounts(&self, requests: &Resources) -> Amounts {
        self.cluster.dims().amounts(requests)
    }
}

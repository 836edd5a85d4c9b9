//! What holds capacity, and what is about to leave.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::member::Member;
use lockstep_engine::queue;
use lockstep_engine::{Amounts, Cluster, NodeIx, NodeSet};

use crate::cluster::Snapshot;
use crate::pdb::Budget;
use crate::pod::Pod;
use crate::pod_list::{ListedPod, Tags};
use crate::resources::Resources;
use crate::rules::Rules;
use crate::units::Occupant;
use crate::victims::VictimRules;

/// A gang with what it holds.
#[derive(Clone, Debug)]
pub struct PlacedGang<'a> {
    /// UID of its pod group.
    pub uid: &'a str,
    /// Namespace of its workload and its pods.
    pub namespace: &'a str,
    /// UID of its workload, the owner of its pods.
    pub workload_uid: &'a str,
    /// Priority of the gang.
    pub priority: i32,
    /// Priority that counts when others want its capacity, once it runs; never less than its
    /// priority.
    pub preemption_priority: Option<i32>,
    /// Whether it would preempt when it queues again.
    pub preempts: bool,
    /// What preemption takes of it.
    pub disruption: Disruption,
    /// Labels of its pod templates, which may put it out of reach of preemption.
    pub template_labels: Vec<&'a BTreeMap<String, String>>,
    /// Whether it is on its way out: finished, released its placement, or is being preempted.
    pub leaves: bool,
    /// The last checkpoint of its workload.
    pub checkpoint: Option<DateTime<Utc>>,
    /// When its last incident was over.
    pub resumed: Option<DateTime<Utc>>,
    /// Its pods.
    pub pods: &'a [Arc<Pod>],
    /// What it holds, where it is known that all of its pods are bound and none is about to end, and
    /// nothing is reserved for others.
    pub bound: Option<&'a [Occupant]>,
    /// Its pods that wait for a node that their member no longer has: they go anyway.
    pub stray: HashSet<&'a str>,
    /// Its members with a node whose pods do not hold capacity yet.
    pub reserved: Vec<Occupant>,
    /// Nodes where it could run again, for the cost of what victims do next; `None` is every node.
    pub eligible: Option<Arc<NodeSet>>,
    /// When it will have ended at the latest; `None`: nobody knows.
    pub ends: Option<DateTime<Utc>>,
    /// UIDs of pod groups to which it has promised to end sooner: they may evict it whatever its
    /// priority.
    pub overstays: &'a [String],
}

/// What preemption takes of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disruption {
    /// All of it or nothing.
    Whole,
    /// Single pods, with each of which the whole gang restarts.
    Together,
    /// Single pods, each on its own.
    Apart,
}

impl Disruption {
    /// Of a gang that goes whole or not at all, or whose policy is basic.
    pub fn of(whole: bool, basic: bool) -> Self {
        match (whole, basic) {
            (true, _) => Self::Whole,
            (false, false) => Self::Together,
            (false, true) => Self::Apart,
        }
    }
}

/// Capacity of a node that kube-scheduler keeps for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nomination {
    node: NodeIx,
    priority: i32,
    amounts: Amounts,
}

/// The gangs and pods of one moment.
#[derive(Clone, Debug)]
pub struct Occupancy<'a> {
    /// Nodes and pods.
    pub cluster: &'a Snapshot,
    /// Disruption budgets.
    pub budgets: &'a [Arc<Budget>],
    /// How work is weighed and protected.
    pub rules: &'a Rules,
    /// The moment.
    pub now: DateTime<Utc>,
    /// Pods and pod groups (by UID) that an intent in force names as victims.
    pub evicting: &'a BTreeSet<String>,
    /// All gangs; their position is their number in [`UnitTable::sources`](crate::UnitTable::sources).
    pub gangs: Vec<PlacedGang<'a>>,
}

/// Capacity that is about to become free.
#[derive(Clone, Debug, Default)]
pub struct Leaving {
    /// What is held on which node.
    pub held: Vec<(NodeIx, Amounts)>,
    /// When one of those that are ending will have overstayed: it is not waited for any longer.
    pub until: Option<DateTime<Utc>>,
}

impl PlacedGang<'_> {
    /// Its pods where they hold capacity, and what is reserved for members without pods.
    pub fn holds(&self, cluster: &Snapshot) -> Cow<'_, [Occupant]> {
        if let Some(held) = self.bound {
            return Cow::Borrowed(held);
        }
        let mut out = self.reserved.clone();
        let pods = self.pods.iter();
        out.extend(pods.filter_map(|pod| Occupant::of(pod, cluster)));
        Cow::Owned(out)
    }

    /// Whether labels of its templates or of its pods, or the grace period of one of them, put it out
    /// of reach of preemption.
    pub fn spared(&self, rules: &VictimRules) -> bool {
        if self
            .template_labels
            .iter()
            .any(|labels| rules.spare(labels))
        {
            return true;
        }
        // The pods of a gang share their labels.
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

    /// Priority that counts when others want its capacity: from the start of its pods on it may be
    /// a higher one.
    pub fn victim_priority(&self) -> i32 {
        queue::victim_priority(
            self.priority,
            self.preemption_priority
                .filter(|_| self.started().is_some()),
        )
    }

    /// The same for a preemptor of this priority: to one that it keeps waiting longer than it has
    /// promised it counts less.
    pub(crate) fn counts_for(&self, preemptor: Option<&str>, priority: i32) -> i32 {
        let own = self.victim_priority();
        if preemptor.is_some_and(|uid| self.overstays.iter().any(|o| o == uid)) {
            own.min(priority.saturating_sub(1))
        } else {
            own
        }
    }

    /// When its first pod started; `None` before that.
    pub(crate) fn started(&self) -> Option<DateTime<Utc>> {
        self.pods
            .iter()
            .filter(|p| p.bound.is_some() && p.alive())
            .filter_map(|p| p.started)
            .min()
    }
}

/// What is reserved for members with a node that no pod of theirs holds yet.
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

/// What kube-scheduler keeps free, and for which priority.
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

/// The cluster as a gang of this priority sees it: what is nominated for pods of lower priority
/// does not bind it, as it does not bind kube-scheduler.
pub fn ignore_lesser(free: &mut Cluster, nominations: &[Nomination], priority: i32) {
    for nominated in nominations.iter().filter(|n| n.priority < priority) {
        free.remove_pod(nominated.node, &nominated.amounts);
    }
}

/// Whether the owner of a pod is one of these workloads, of which namespace and UID are given.
fn is_owned_by_one_of(workloads: &HashSet<(&str, &str)>, pod: &Pod) -> bool {
    let owner = pod.owner.as_ref();
    owner.is_some_and(|o| workloads.contains(&(&*pod.namespace, o.as_str())))
}

/// What is said of pods by what they request, which the many pods of a cluster share.
#[derive(Debug)]
pub(crate) struct ByRequests<T> {
    known: Vec<(*const Resources, T)>,
    /// Where in `known` each is.
    at: HashMap<*const Resources, usize>,
    /// What was asked last: neighbours in the list of pods are mostly alike.
    last: usize,
}

impl<T> Default for ByRequests<T> {
    fn default() -> Self {
        Self {
            known: Vec::new(),
            at: HashMap::new(),
            last: 0,
        }
    }
}

impl<T> ByRequests<T> {
    /// What is said of these.
    pub fn of(&mut self, requests: &Arc<Resources>, say: impl FnOnce(&Resources) -> T) -> &T {
        let key = Arc::as_ptr(requests);
        if self
            .known
            .get(self.last)
            .is_none_or(|(last, _)| *last != key)
        {
            let known = &mut self.known;
            self.last = *self.at.entry(key).or_insert_with(|| {
                known.push((key, say(requests)));
                known.len() - 1
            });
        }
        &self.known[self.last].1
    }
}

impl<'a> Occupancy<'a> {
    /// What holds capacity and is leaving: all that is held by gangs on their way out and by
    /// victims of intents in force, and pods that are ending, as long as they are
    /// [waited for](Rules::waited_for).
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
            let held = gang.holds(self.cluster);
            let held = held.iter();
            let held = held.filter(|h| h.pod.as_ref().is_none_or(|pod| self.is_in_time(pod)));
            out.held
                .extend(held.map(|h| (h.node, self.amounts(&h.requests))));
        }
        // None other than these go.
        let all = !self.evicting.is_empty();
        let parts = self.cluster.pod_parts();
        let parts = parts.filter(|part| all || part.terminating);
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

    /// Whether a pod is not ending, or will have ended so soon that it is waited for.
    fn is_in_time(&self, pod: &Pod) -> bool {
        let end = pod.terminating;
        end.is_none_or(|end| self.rules.in_time(end, self.now))
    }

    /// Pods that disruption budgets count as there, of gangs and intents in force that have them go.
    pub(crate) fn about_to_go(&self) -> impl Iterator<Item = &Pod> {
        let gangs = self.gangs.iter().filter(|gang| self.goes(gang));
        let members = gangs.flat_map(|gang| gang.pods.iter().map(|pod| &**pod));
        let listed = self.cluster.listed_pods();
        let evicted = listed.filter(|_| !self.budgets.is_empty() && !self.evicting.is_empty());
        let evicted = evicted.map(|listed| &*listed.pod);
        let evicted = evicted.filter(|pod| self.is_being_evicted(pod));
        let there = |pod: &&Pod| pod.bound.is_some() && pod.alive();
        members.chain(evicted).filter(there)
    }

    /// What would be free for a gang of this priority with everything gone that anybody could evict for
    /// it, whatever protects that from eviction now.
    pub fn free_at_most(&self, asking: Option<usize>, priority: i32, free: &Cluster) -> Cluster {
        let mut most = free.clone();
        let mut kinds = ByRequests::default();
        let preemptor = asking.and_then(|number| self.gangs.get(number));
        for (number, gang) in self.gangs.iter().enumerate() {
            let counts = gang.counts_for(preemptor.map(|p| p.uid), priority);
            if Some(number) == asking || counts >= priority || self.goes(gang) {
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

    /// Pods below a priority that belong to no gang and that the API server would evict.
    pub(crate) fn foreign_pods(&self, priority: i32) -> impl Iterator<Item = &'a ListedPod> {
        // A pod that names the workload of another namespace as its owner is not out of reach by
        // that.
        let owners = self.gangs.iter().map(|t| (t.namespace, t.workload_uid));
        let managed: HashSet<(&str, &str)> = owners.collect();
        let (pods, is_evicted) = (self.cluster.listed_pods(), self.is_evicted());
        pods.filter(move |listed| {
            listed.evictable
                && listed.priority < priority
                && !is_evicted(listed)
                && !(listed.owned && is_owned_by_one_of(&managed, &listed.pod))
        })
    }

    pub(crate) fn goes(&self, gang: &PlacedGang<'_>) -> bool {
        gang.leaves || self.evicting.contains(gang.uid)
    }

    pub(crate) fn evictable(&self, pod: &Pod) -> bool {
        pod.bound.is_some() && pod.alive() && !pod.protected && !self.is_being_evicted(pod)
    }

    /// Tells of many pods whether an intent in force names the pod itself.
    pub(crate) fn is_evicted(&self) -> impl Fn(&ListedPod) -> bool {
        let named = Tags::of(self.evicting.iter().map(String::as_str));
        move |listed| named.contains(listed.tag) && self.is_being_evicted(&listed.pod)
    }

    /// Whether an intent in force names the pod itself.
    pub(crate) fn is_being_evicted(&self, pod: &Pod) -> bool {
        !self.evicting.is_empty() && self.evicting.contains(pod.uid.as_str())
    }

    pub(crate) fn amounts(&self, requests: &Resources) -> Amounts {
        self.cluster.dims().amounts(requests)
    }
}

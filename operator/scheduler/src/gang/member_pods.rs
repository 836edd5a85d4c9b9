//! Pods of each gang by member. Between two cycles, most gangs are unchanged.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use lockstep_api::gangs::Assignments;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_model::pods::pod::Stage;
use lockstep_model::{Occupant, Pod, Snapshot};

use crate::input::GangInput;

pub(crate) type PodsByMember = BTreeMap<Member, Vec<Arc<Pod>>>;

#[derive(Clone, Debug, Default)]
pub(crate) struct GangPods {
    pub by_member: Arc<PodsByMember>,
    pub all: Arc<[Arc<Pod>]>,
    /// Unbound pods, mostly none.
    pub unbound: Arc<[Arc<Pod>]>,
    /// Set if all members are bound as placed.
    pub fully_bound: Option<Arc<FullyBound>>,
}

/// A gang with one bound, non-terminating pod per member on its assigned node. Most running gangs
/// are in this state, for which stages skip checks per pod.
#[derive(Debug)]
pub(crate) struct FullyBound {
    /// Assignments for which this is true.
    assigned: Arc<Assignments>,
    pub nodes: usize,
    pub holds: Vec<Occupant>,
}

#[derive(Debug, Default)]
pub(crate) struct MemberPods(HashMap<String, CachedPods>);

#[derive(Debug)]
struct CachedPods {
    /// Pods of the workload from which `pods` was computed.
    among: Arc<Vec<Arc<Pod>>>,
    pods: GangPods,
    /// Compared input, and the version of the nodes, whose ordinals can change.
    compared: Option<(Arc<GangInput>, u64)>,
}

impl MemberPods {
    pub fn of(&mut self, gang: &Arc<GangInput>, cluster: &Snapshot) -> GangPods {
        let Some(among) = cluster.list_of(gang.workload.uid.as_str()) else {
            return GangPods::default();
        };
        let uid = gang.group.uid.as_str();
        if let Some(cached) = self.0.get_mut(uid)
            && Arc::ptr_eq(&cached.among, among)
        {
            cached.compare(gang, cluster);
            return cached.pods.clone();
        }
        let mut cached = CachedPods::new(gang, among);
        cached.compare(gang, cluster);
        let pods = cached.pods.clone();
        self.0.insert(uid.to_owned(), cached);
        pods
    }

    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| exists(uid));
    }
}

impl CachedPods {
    fn new(gang: &GangInput, among: &Arc<Vec<Arc<Pod>>>) -> Self {
        let by_member = by_member(gang, among);
        let all: Arc<[Arc<Pod>]> = by_member.values().flatten().cloned().collect();
        let unbound = all.iter().filter(|p| p.bound.is_none());
        Self {
            among: Arc::clone(among),
            pods: GangPods {
                unbound: unbound.cloned().collect(),
                by_member: Arc::new(by_member),
                all,
                fully_bound: None,
            },
            compared: None,
        }
    }

    /// Recomputes `fully_bound` if the gang or the nodes changed.
    fn compare(&mut self, gang: &Arc<GangInput>, cluster: &Snapshot) {
        let version = cluster.nodes_version();
        let is_current = self.compared.as_ref().is_some_and(|(with, nodes)| {
            // The same pods and the same object: the result is still valid.
            Arc::ptr_eq(with, gang) && *nodes == version
        });
        if !is_current {
            let fully_bound = FullyBound::find(gang, &self.pods, cluster);
            self.pods.fully_bound = fully_bound.map(Arc::new);
            self.compared = Some((Arc::clone(gang), version));
        }
    }
}

impl FullyBound {
    fn find(input: &GangInput, pods: &GangPods, cluster: &Snapshot) -> Option<Self> {
        let assigned = input.group.assigned.as_ref()?;
        let (gang, ledger) = (&input.gang, &input.workload.members);
        let members: BTreeSet<&Member> = gang.members().collect();
        let replaced = ledger.domains.iter().any(|d| d.incident.is_some());
        let enough = usize::try_from(gang.min_count).unwrap_or_default() <= assigned.len();
        if replaced
            || !enough
            || !ledger.finished.is_empty()
            || !members.into_iter().eq(assigned.keys())
        {
            return None;
        }
        let mut each = pods.by_member.iter().zip(assigned.iter());
        let bound = pods.by_member.len() == assigned.len()
            && each.all(|((of, pods), (member, node))| of == member && are_one_on(pods, node));
        bound.then(|| Self {
            assigned: Arc::clone(assigned),
            nodes: assigned.values().collect::<BTreeSet<_>>().len(),
            holds: pods
                .all
                .iter()
                .filter_map(|pod| Occupant::of(pod, cluster))
                .collect(),
        })
    }

    /// True if this was computed for these assignments.
    pub fn is_of(&self, assigned: &Arc<Assignments>) -> bool {
        Arc::ptr_eq(&self.assigned, assigned)
    }
}

/// True if there is one pod, bound to the node and not terminating.
fn are_one_on(pods: &[Arc<Pod>], node: &NodeName) -> bool {
    match pods {
        [pod] => pod.alive() && pod.stage != Stage::Refused && pod.bound.as_ref() == Some(node),
        _ => false,
    }
}

fn by_member(gang: &GangInput, among: &[Arc<Pod>]) -> PodsByMember {
    let members: BTreeSet<&Member> = gang.gang.members().collect();
    let mut out = PodsByMember::new();
    for pod in among {
        // A pod without the label of its group still takes the capacity of its member.
        let labelled = pod.pod_group.as_ref() == Some(&gang.key.name);
        let ours = |m: &&Member| labelled || members.contains(m);
        if let Some(member) = pod.member.as_ref().filter(ours) {
            out.entry(member.clone()).or_default().push(Arc::clone(pod));
        }
    }
    out
}

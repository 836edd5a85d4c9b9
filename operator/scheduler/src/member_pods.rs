//! The pods of each gang, by member. Most gangs have the pods that they had in the last cycle.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lockstep_api::member::Member;
use lockstep_model::{Pod, Snapshot};

use crate::input::GangInput;

/// Pods of a gang by member.
pub(crate) type PodsByMember = BTreeMap<Member, Vec<Arc<Pod>>>;

/// The pods of a gang.
#[derive(Clone, Debug, Default)]
pub(crate) struct GangPods {
    pub by_member: Arc<PodsByMember>,
    /// Those that are not bound: mostly there are none.
    pub unbound: Arc<[Arc<Pod>]>,
}

/// What was found in the last cycle, by the UID of the pod group.
#[derive(Debug, Default)]
pub(crate) struct MemberPods(HashMap<String, Found>);

#[derive(Debug)]
struct Found {
    /// The pods of the workload among which they are.
    among: Arc<Vec<Arc<Pod>>>,
    pods: GangPods,
}

impl MemberPods {
    /// The pods of a gang.
    pub fn of(&mut self, gang: &GangInput, cluster: &Snapshot) -> GangPods {
        let Some(among) = cluster.list_of(gang.workload.uid.as_str()) else {
            return GangPods::default();
        };
        let uid = gang.group.uid.as_str();
        if let Some(found) = self.0.get(uid).filter(|f| Arc::ptr_eq(&f.among, among)) {
            return found.pods.clone();
        }
        let by_member = by_member(gang, among);
        let unbound = by_member.values().flatten().filter(|p| p.bound.is_none());
        let pods = GangPods {
            unbound: unbound.cloned().collect(),
            by_member: Arc::new(by_member),
        };
        let found = Found {
            among: Arc::clone(among),
            pods: pods.clone(),
        };
        self.0.insert(uid.to_owned(), found);
        pods
    }

    /// Forgets gangs that are gone.
    pub fn retain(&mut self, there: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| there(uid));
    }
}

/// Those of the pods of a workload that are of the gang.
fn by_member(gang: &GangInput, among: &[Arc<Pod>]) -> PodsByMember {
    let key = &gang.key;
    let mut out = PodsByMember::new();
    for pod in among {
        let ours = pod.pod_group.as_ref() == Some(&key.name) && pod.namespace == key.namespace;
        if let Some(member) = pod.member.as_ref().filter(|_| ours) {
            out.entry(member.clone()).or_default().push(Arc::clone(pod));
        }
    }
    out
}

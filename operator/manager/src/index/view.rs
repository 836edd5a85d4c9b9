use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::ids::{GangKey, NodeName, Uid};
use lockstep_api::names::{labels, pod_group_prefix};
use lockstep_api::scheduling::PreemptionPolicy;
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_lifecycle::gangs::GangView;
use lockstep_lifecycle::view::{
    DryRun, FailedRequest, Held, NativeView, Priority, RejectedRequest, WorkloadId,
};
use lockstep_lifecycle::{LifecycleSettings, PodView, WorkloadView};
use lockstep_model::PriorityClass;

use super::state::{Identified, Key, State, controller_uid};

/// Inputs from outside the watches.
#[derive(Clone, Debug)]
pub struct ViewInputs {
    pub dry_run: Option<DryRun>,
    pub rejections: Vec<RejectedRequest>,
    pub failed: Option<FailedRequest>,
    pub settings: Arc<LifecycleSettings>,
}

impl State {
    /// `None` if the workload does not exist or has no identity yet.
    pub fn view(&self, key: &Key, inputs: ViewInputs) -> Option<WorkloadView> {
        let workload = self.workloads.get(key)?.clone();
        let id = WorkloadId::read(&workload)?;
        let members = self.members_of(&key.namespace, id.uid.as_str());
        let pods: Vec<Arc<PodView>> = members.cloned().collect();
        let mut disrupted = self.disrupted.get(&id.uid).cloned().unwrap_or_default();
        for member in pods.iter().filter_map(|pod| pod.identity.member.as_ref()) {
            disrupted.remove(member);
        }
        let pod_groups = self.gangs_of(&id);
        let gangs: BTreeMap<GangKey, GangView> = pod_groups
            .iter()
            .map(|(gang, group)| {
                let view = GangView {
                    provisioned: self.provisioned(&Key::of(&**group), group, id.uid.as_str()),
                    ..GangView::read(group)
                };
                (gang.clone(), view)
            })
            .collect();
        let names = node_names(&pods, &gangs);
        let service = workload.spec.network.subdomain_of(&key.name);
        Some(WorkloadView {
            scheduling: self
                .scheduling
                .get(key)
                .map(|o| held(o, &id.uid, o.object.spec.clone())),
            order: self
                .orders
                .get(key)
                .map(|o| held(o, &id.uid, o.object.spec.clone())),
            native: NativeView {
                supported: self.native_supported,
                workloads: named(&self.native_workloads, &id),
                pod_groups: named(&self.native_pod_groups, &id),
            },
            kueue: self.kueue.view(&id),
            service: self.services.get(&Key::new(&key.namespace, service)).map(
                |(owner, service)| Held {
                    owned: owner.as_ref() == Some(&id.uid),
                    ..service.clone()
                },
            ),
            nodes: names
                .iter()
                .cloned()
                .chain(left_nodes(&workload))
                .filter_map(|n| Some((n.clone(), self.nodes.get(n.as_str())?.clone())))
                .collect(),
            disrupted,
            agents: names
                .iter()
                .filter_map(|n| Some((n.clone(), self.agent(n)?)))
                .collect(),
            agent_pods: names
                .iter()
                .filter_map(|n| Some((n.clone(), self.agent_pods_of(n)?.since)))
                .collect(),
            all_agents_supervise: self.agents.all_supervise(),
            priority: self.priority(&workload),
            dry_run: inputs.dry_run,
            rejections: inputs.rejections,
            failed: inputs.failed,
            settings: inputs.settings,
            pods,
            gangs,
            pod_groups,
            workload,
            id,
        })
    }

    fn gangs_of(&self, id: &WorkloadId) -> BTreeMap<GangKey, Arc<PodGroup>> {
        with_prefix(&self.pod_groups, id)
            .filter(|(_, group)| controller_uid(&***group) == Some(id.uid.as_str()))
            .filter_map(|(_, g)| Some((GangKey::read(Some(&g.spec.gang_key))?, Arc::clone(g))))
            .collect()
    }

    fn priority(&self, workload: &TrainingWorkload) -> Priority {
        let name = workload.spec.priority_class_name.as_deref();
        let Ok(class) = PriorityClass::resolve(name, self.priority_classes.values()) else {
            return Priority::ClassMissing;
        };
        Priority::Resolved {
            value: class.map_or(0, |c| c.value),
            preemption: class.map_or(PreemptionPolicy::PreemptLowerPriority, |c| c.preemption),
        }
    }
}

/// Names of pod groups start with the workload's name, so the groups are adjacent in the table.
fn with_prefix<'t, V>(
    table: &'t BTreeMap<Key, V>,
    id: &WorkloadId,
) -> impl Iterator<Item = (&'t Key, &'t V)> {
    let first = Key::new(&id.namespace, pod_group_prefix(&id.name));
    table.range(first.clone()..).take_while(move |(key, _)| {
        key.namespace == first.namespace && key.name.starts_with(&*first.name)
    })
}

/// Native groups with the workload's prefix, of any owner.
fn named<T: Clone>(
    table: &BTreeMap<Key, (Option<Uid>, Held<T>)>,
    id: &WorkloadId,
) -> BTreeMap<String, Held<T>> {
    let named = with_prefix(table, id).map(|(key, (owner, held))| {
        let owned = owner.as_ref() == Some(&id.uid);
        let held = Held {
            owned,
            ..held.clone()
        };
        (key.name.to_string(), held)
    });
    named.collect()
}

fn held<K: kube::Resource, T>(object: &Identified<K>, workload: &Uid, content: T) -> Held<T> {
    Held {
        uid: object.uid.clone(),
        resource_version: object.version.clone(),
        owned: controller_uid(&*object.object) == Some(workload.as_str()),
        orphaned: is_orphan(object.object.meta(), workload),
        content,
    }
}

fn is_orphan(metadata: &ObjectMeta, workload: &Uid) -> bool {
    let has_owner = metadata.owner_references.iter().flatten().next().is_some();
    let labels = metadata.labels.as_ref();
    let earlier = labels.and_then(|l| l.get(labels::WORKLOAD_UID));
    !has_owner && earlier.is_some_and(|uid| uid != workload.as_str())
}

/// Nodes that gangs avoid or have moved away from. Their signals decide how long.
fn left_nodes(workload: &TrainingWorkload) -> BTreeSet<String> {
    let gangs = workload.status.iter().flat_map(|s| &s.gangs);
    let nodes = gangs.flat_map(|gang| {
        let moving = gang.moving.iter();
        let moved = moving.flat_map(|m| m.nodes.iter().chain(&m.settled));
        let avoided = gang.avoid.iter().map(|a| &a.node);
        avoided.chain(moved.map(|n| &n.node))
    });
    nodes.cloned().collect()
}

fn node_names(pods: &[Arc<PodView>], gangs: &BTreeMap<GangKey, GangView>) -> BTreeSet<String> {
    let of_pods = pods.iter().flat_map(|p| p.node.iter().chain(&p.pinned));
    let placements = gangs.values().filter_map(|g| g.placement.as_ref());
    let assigned = placements.flat_map(|p| p.nodes.values().map(NodeName::as_str));
    let names: BTreeSet<&str> = of_pods.map(String::as_str).chain(assigned).collect();
    names.into_iter().map(str::to_owned).collect()
}

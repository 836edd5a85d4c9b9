use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSchedulingGate, PodSchedulingGroup, PodSpec};
use lockstep_api::ids::{DomainKey, GangKey};
use lockstep_api::kueue::{POD_SET_LABEL, WORKLOAD_ANNOTATION};
use lockstep_api::member::Member;
use lockstep_api::names::{
    DEFAULT_SCHEDULER, PREEMPTION_GATE, annotations, hostname, labels, pod_group_name, pod_name,
};
use lockstep_api::provisioning::{AGAINST_CONSOLIDATION, CONSUMED_CLASS, CONSUMED_REQUEST};
use lockstep_api::workload::{FailureAction, Group, KueueStatus};

use super::hash::spec_hash;
use super::metadata::metadata;
use super::restart::{Codes, compile};
use super::supervise::{Delivery, supervise, supervisor_image};
use super::training::{has_one_container, training_container};
use super::{affinity, env};
use crate::domains::may_keep_pods;
use crate::observed::Observed;
use lockstep_api::member_pod::DEFAULT_CONTAINER;
use lockstep_api::membership::Membership;
use lockstep_api::tier::Tier;

/// What [`Identity::read`](lockstep_api::member_pod::Identity::read) reads and no later request repairs.
const IDENTITY_LABELS: [&str; 3] = [labels::GROUP, labels::REPLICA, labels::INDEX];
const IDENTITY_ANNOTATIONS: [&str; 4] = [
    annotations::SPEC_HASH,
    annotations::TIER,
    annotations::ATTEMPT,
    annotations::PLACEMENT,
];

#[derive(Clone, Copy, Debug)]
pub(crate) struct PodPlan<'a> {
    pub member: &'a Member,
    pub gang: &'a GangKey,
    pub domain: &'a DomainKey,
    pub attempt: i64,
    /// How often all members of the coordinator got new pods together.
    pub recreations: i64,
    /// Node and placement id. `None` for a dry run.
    pub place: Option<(&'a str, &'a str)>,
    pub replaces: Option<&'a str>,
    /// True if the pod waits for victims of a preemption.
    pub gated: bool,
    pub tier: Tier,
    /// `None`: without a supervisor.
    pub supervised: Option<Delivery>,
    pub has_peers: bool,
    /// Name of its native pod group.
    pub native_group: Option<&'a str>,
    /// Its admission by Kueue.
    pub quota: Option<&'a KueueStatus>,
}

/// `None` if the member does not run.
pub(crate) fn pod(
    view: Observed<'_>,
    membership: &Membership<'_>,
    plan: PodPlan<'_>,
) -> Option<Pod> {
    let group = view
        .spec()
        .groups
        .iter()
        .find(|g| g.name == plan.member.group)?;
    let template = &group.template.0;
    let training = training_container(template)?;
    let mut spec = template.spec.clone()?;
    let image = supervisor_image(view.settings(), view.spec(), group);
    let supervisor = image.zip(plan.supervised);
    let tier = supervisor.map_or(plan.tier, |_| Tier::Supervised);
    let default = FailureAction::default_for(view.spec().scheduling.policy);
    let policy = &view.spec().failure_policy;
    let keeps_pods = may_keep_pods(&policy.in_place, plan.has_peers, tier.has_barrier());
    let single = has_one_container(&spec);
    let codes = Codes::of(policy, &group.name, training, default, keeps_pods, single);
    compile(&mut spec, training, &codes, plan.tier);
    if let Some((image, delivery)) = supervisor {
        supervise(&mut spec, training, image, delivery, &policy.in_place);
    }
    let mut containers = spec.containers.iter();
    let accelerators = containers
        .find(|c| c.name == training)
        .map_or(0, |c| view.settings().accelerators_of(c));
    let variables = env::variables(
        view,
        membership,
        plan.member,
        accelerators,
        plan.recreations,
    )?;
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        env::inject(container, &variables);
    }
    end_observably(&mut spec);
    if spec.host_network == Some(true) {
        // With the default, ClusterFirst, such a pod could not resolve the coordinator's name.
        let policy = || "ClusterFirstWithHostNet".to_owned();
        spec.dns_policy.get_or_insert_with(policy);
    }
    affinity::tolerate_unreachable_nodes(&mut spec);
    if let Some((node, _)) = plan.place {
        affinity::pin(&mut spec, node);
    }
    identify(view, &plan, &mut spec);
    let quota = plan.quota.and_then(|q| Some((q, q.pod_set(&group.name)?)));
    if let Some((_, pod_set)) = quota {
        pod_set.apply(&mut spec);
    }
    compact(&mut spec);

    let mut meta = metadata(
        view,
        pod_name(view.name(), view.uid(), plan.member, plan.replaces),
    );
    meta.labels = Some(pod_labels(
        view,
        group,
        &plan,
        meta.labels.take().unwrap_or_default(),
    ));
    meta.annotations = Some(pod_annotations(view, group, &plan, tier, training));
    if let Some((quota, pod_set)) = quota {
        let labels = meta.labels.get_or_insert_default();
        labels.extend(pod_set.labels.clone());
        labels.insert(POD_SET_LABEL.to_owned(), pod_set.name.clone());
        let annotations = meta.annotations.get_or_insert_default();
        annotations.extend(pod_set.annotations.clone());
        annotations.insert(WORKLOAD_ANNOTATION.to_owned(), quota.workload.clone());
    }
    Some(Pod {
        metadata: meta,
        spec: Some(spec),
        status: None,
    })
}

/// Hundreds of pods are queued at a time, and a vector of one volume has space for four, at 3 kB
/// each.
fn compact(spec: &mut PodSpec) {
    spec.volumes.iter_mut().for_each(Vec::shrink_to_fit);
    spec.init_containers.iter_mut().for_each(Vec::shrink_to_fit);
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        container.env.iter_mut().for_each(Vec::shrink_to_fit);
        container
            .volume_mounts
            .iter_mut()
            .for_each(Vec::shrink_to_fit);
        container.command.iter_mut().for_each(Vec::shrink_to_fit);
    }
}

/// With a grace period of 0, the API server removes a deleted pod while its containers run
/// (`CheckGracefulDelete` of pods). Their end could not be observed, and the kubelet would reject
/// the next pod. With 1 s, the pod stays until its containers have ended.
fn end_observably(spec: &mut PodSpec) {
    if spec.termination_grace_period_seconds == Some(0) {
        spec.termination_grace_period_seconds = Some(1);
    }
}

fn identify(view: Observed<'_>, plan: &PodPlan<'_>, spec: &mut PodSpec) {
    spec.hostname = Some(hostname(view.name(), plan.member));
    spec.subdomain = Some(view.subdomain().to_owned());
    spec.priority_class_name
        .clone_from(&view.spec().priority_class_name);
    spec.scheduler_name
        .get_or_insert_with(|| DEFAULT_SCHEDULER.into());
    if let Some(name) = plan.native_group {
        spec.scheduling_group = Some(PodSchedulingGroup {
            pod_group_name: Some(name.to_owned()),
        });
    }
    if plan.gated {
        let gate = PodSchedulingGate {
            name: PREEMPTION_GATE.into(),
        };
        spec.scheduling_gates
            .get_or_insert_with(Vec::new)
            .push(gate);
    }
}

fn pod_labels(
    view: Observed<'_>,
    group: &Group,
    plan: &PodPlan<'_>,
    ours: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut out = group
        .template
        .0
        .metadata
        .as_ref()
        .and_then(|m| m.labels.clone())
        .unwrap_or_default();
    out.extend(ours);
    for (key, value) in [
        (labels::GROUP, plan.member.group.clone()),
        (labels::REPLICA, plan.member.replica.to_string()),
        (labels::INDEX, plan.member.index.to_string()),
        (labels::DOMAIN, plan.domain.to_string()),
        (
            labels::POD_GROUP,
            pod_group_name(view.name(), view.uid(), plan.gang.as_str()),
        ),
        (labels::PUBLISHED, view.uid().to_owned()),
    ] {
        out.insert(key.to_owned(), value);
    }
    out
}

fn pod_annotations(
    view: Observed<'_>,
    group: &Group,
    plan: &PodPlan<'_>,
    tier: Tier,
    training: &str,
) -> BTreeMap<String, String> {
    let mut out = group
        .template
        .0
        .metadata
        .as_ref()
        .and_then(|m| m.annotations.clone())
        .unwrap_or_default();
    for (key, value) in [
        (annotations::SPEC_HASH, spec_hash(view.spec())),
        (annotations::TIER, tier.to_string()),
        (annotations::ATTEMPT, plan.attempt.to_string()),
        (
            annotations::PLACEMENT,
            plan.place.map_or("", |(_, id)| id).to_owned(),
        ),
        // The agent reads the name of the training container from it.
        (DEFAULT_CONTAINER, training.to_owned()),
    ] {
        out.insert(key.to_owned(), value);
    }
    note_for_autoscalers(view, plan, &mut out);
    out
}

/// The request whose capacity the pod uses, without which the autoscaler would add nodes for the pod,
/// and the marks against consolidation. Those of the template take precedence.
fn note_for_autoscalers(
    view: Observed<'_>,
    plan: &PodPlan<'_>,
    out: &mut BTreeMap<String, String>,
) {
    let gang = view.gangs().get(plan.gang);
    if let Some(request) = gang.and_then(|gang| gang.provisioned.as_ref()) {
        out.insert(CONSUMED_REQUEST.to_owned(), request.name.clone());
        out.insert(CONSUMED_CLASS.to_owned(), request.class.clone());
    }
    if view.settings().protect_members {
        for (key, value) in AGAINST_CONSOLIDATION {
            let mark = out.entry(key.to_owned());
            mark.or_insert_with(|| value.to_owned());
        }
    }
}

/// The part of a created pod by which decisions identify or place it, if a webhook has changed it.
pub fn altered_part(sent: &Pod, stored: &Pod) -> Option<String> {
    let labels = |pod: &Pod, key: &str| pod.metadata.labels.as_ref()?.get(key).cloned();
    let annotations = |pod: &Pod, key: &str| pod.metadata.annotations.as_ref()?.get(key).cloned();
    let mut identity = IDENTITY_LABELS.into_iter();
    if let Some(key) = identity.find(|key| labels(sent, key) != labels(stored, key)) {
        return Some(format!("label {key}"));
    }
    let mut identity = IDENTITY_ANNOTATIONS.into_iter();
    if let Some(key) = identity.find(|key| annotations(sent, key) != annotations(stored, key)) {
        return Some(format!("annotation {key}"));
    }
    let (sent, stored) = (sent.spec.as_ref()?, stored.spec.as_ref()?);
    (!affinity::keeps_pin(sent, stored)).then(|| "spec.affinity.nodeAffinity".into())
}

/// Pods for a dry run, one per group.
pub(crate) fn dry_run_pods(view: Observed<'_>, tier: Tier) -> Vec<Pod> {
    let membership = Membership::whole(view.spec());
    let groups = view
        .spec()
        .groups
        .iter()
        .filter(|g| view.spec().members_of(g) > 0);
    groups
        .filter_map(|g| {
            let member = Member::new(g.name.as_str(), 0, 0);
            let gang = GangKey::read(Some(&g.name))?;
            let plan = PodPlan {
                member: &member,
                gang: &gang,
                domain: &DomainKey::from(&gang),
                attempt: 1,
                recreations: 0,
                place: None,
                replaces: Some("dry-run"),
                gated: false,
                tier,
                supervised: Some(Delivery::Copied),
                has_peers: true,
                native_group: None,
                quota: None,
            };
            pod(view, &membership, plan)
        })
        .collect()
}

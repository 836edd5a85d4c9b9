use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::{Affinity, NodeSelectorTerm, PodAffinityTerm, PodSchedulingGate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use lockstep_api::TrainingWorkload;
use lockstep_api::condition::{reasons, types};
use lockstep_api::ids::{NodeName, Uid};
use lockstep_api::key::Key;
use lockstep_api::member::Member;
use lockstep_api::names::{PREEMPTION_GATE, annotations, labels, member_of};
use lockstep_api::template::DEFAULT_GRACE;
use lockstep_api::time::utc;

use crate::common::metadata::{annotation, label};
use crate::common::unreadable::{Unreadable, present};
use crate::pods::foreign::{PodUnit, unit_of};
use crate::pods::pod_view::{PodSpecView, PodStatusView};
use crate::pods::refusal::concerns_group;
use crate::pods::resources::{Resources, resized_pod_takes};

/// Annotation of mirror pods, whose static pods the API server cannot evict.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Smallest priority reserved for the system (`scheduling.SystemCriticalPriority`).
const SYSTEM_PRIORITY: i32 = 2_000_000_000;
/// Reason of condition PodScheduled if the scheduler failed (`PodReasonSchedulerError`).
const SCHEDULER_ERROR: &str = "SchedulerError";

/// A pod, trimmed for the scheduler.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a field of the object it was read from"
)]
pub struct Pod {
    pub uid: Uid,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// Labels, for disruption budgets.
    pub labels: Arc<BTreeMap<String, String>>,
    pub owner: Option<Uid>,
    /// Foreign unit of the pod: pods that restart or wait when one is evicted. Its key is unique in
    /// the namespace.
    pub unit: Option<PodUnit>,
    /// Name of the pod group. Only trusted if `owner` is set.
    pub pod_group: Option<Arc<str>>,
    /// Member of the workload. Only trusted if `owner` is set.
    pub member: Option<Member>,
    /// Id of the placement that chose the node.
    pub placement: Option<Arc<str>>,
    pub bound: Option<NodeName>,
    /// Node that its affinity names in `matchFields`.
    pub pinned: Option<NodeName>,
    pub nominated: Option<NodeName>,
    pub requests: Arc<Resources>,
    /// Names of mounted volume claims. `None`: no claims.
    pub claims: Option<Arc<[String]>>,
    /// Required terms of its pod anti-affinity. `None`: no terms.
    pub anti_affinity: Option<Arc<[PodAffinityTerm]>>,
    pub priority: i32,
    pub preempts: bool,
    /// True for pods that are never victims: `DaemonSet`, mirror and system-priority pods. Labels
    /// are in [`crate::VictimRules`].
    pub protected: bool,
    pub stage: Stage,
    /// First scheduling gate of another controller.
    pub foreign_gate: Option<Arc<str>>,
    /// Scheduler's message if it refuses the pod (see [`crate::pods::refusal`]) or fails, for example if
    /// volumes are not bound in time.
    pub refusal: Option<Arc<str>>,
    /// Grace period, unless the deletion overrides it.
    pub grace: Duration,
    /// Latest end of a deleted pod.
    pub terminating: Option<DateTime<Utc>>,
    /// True if condition DisruptionTarget is True.
    pub disrupted: bool,
    /// Time at which the kubelet accepted the pod; before that, its creation.
    pub started: Option<DateTime<Utc>>,
    /// True if none of its containers has run yet.
    pub pending: bool,
    /// Last checkpoint that its user declared.
    pub last_checkpoint: Option<DateTime<Utc>>,
    /// True if it may end by itself: its restart policy is not `Always`.
    pub may_end: bool,
    pub ends: Option<DateTime<Utc>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Unscheduled, or bound and running.
    #[default]
    Open,
    /// Held by Lockstep's preemption gate.
    Gated,
    /// kube-scheduler has found no node in its last attempt.
    Refused,
    /// Succeeded or failed; holds no capacity.
    Ended,
}

impl Pod {
    pub fn bare(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>, uid: Uid) -> Self {
        Self {
            uid,
            namespace: namespace.into(),
            name: name.into(),
            labels: Arc::default(),
            owner: None,
            unit: None,
            pod_group: None,
            member: None,
            placement: None,
            bound: None,
            pinned: None,
            nominated: None,
            requests: Arc::default(),
            claims: None,
            anti_affinity: None,
            priority: 0,
            preempts: false,
            protected: false,
            stage: Stage::Open,
            foreign_gate: None,
            refusal: None,
            grace: Duration::ZERO,
            terminating: None,
            disrupted: false,
            started: None,
            pending: false,
            last_checkpoint: None,
            may_end: false,
            ends: None,
        }
    }

    pub fn new(
        metadata: &ObjectMeta,
        spec: &PodSpecView,
        status: &PodStatusView,
    ) -> Result<Self, Unreadable> {
        let name = present("name", metadata.name.as_ref())?;
        let namespace = present("namespace", metadata.namespace.as_ref())?;
        let uid = Uid::read(metadata.uid.as_deref()).ok_or(Unreadable::Missing("uid"))?;
        let owner = metadata
            .owner_references
            .iter()
            .flatten()
            .find(|o| o.controller == Some(true));
        // Other controllers may open their gates at any time, and kube-scheduler keeps no capacity
        // for gated pods.
        let held_back = !spec.scheduling_gates.is_empty() && !owner.is_some_and(is_workload);
        let priority = spec.priority.unwrap_or(0);
        let bound = NodeName::read(spec.node_name.as_deref());
        let unscheduled = status
            .condition("PodScheduled", "False")
            .filter(|_| bound.is_none());
        let not_scheduled_for = unscheduled.and_then(|c| c.reason.as_deref());
        // The node is not to blame: another member of the native group does not fit.
        let message = unscheduled.and_then(|c| c.message.as_deref());
        let waits_for_group = message.is_some_and(concerns_group);
        let stage = if matches!(status.phase.as_str(), "Succeeded" | "Failed") {
            Stage::Ended
        } else if spec
            .scheduling_gates
            .iter()
            .any(|g| g.name == PREEMPTION_GATE)
        {
            Stage::Gated
        } else if not_scheduled_for == Some(reasons::UNSCHEDULABLE) && !waits_for_group {
            Stage::Refused
        } else {
            Stage::Open
        };
        let failed = stage == Stage::Open && not_scheduled_for == Some(SCHEDULER_ERROR);
        let refusal = unscheduled
            .and_then(|c| c.message.as_deref())
            .filter(|_| stage == Stage::Refused || failed)
            .map(Arc::from);
        let created = metadata.creation_timestamp.as_ref();
        Ok(Self {
            uid,
            namespace: namespace.as_str().into(),
            name: name.as_str().into(),
            labels: Arc::new(shared_labels(metadata)),
            owner: workload_of(metadata).and_then(|o| Uid::read(Some(&o.uid))),
            // Members are units of their gang.
            unit: (!owner.is_some_and(is_workload))
                .then(|| unit_of(metadata, spec.group()))
                .flatten(),
            pod_group: label(metadata, labels::POD_GROUP).map(Arc::from),
            member: metadata.labels.as_ref().and_then(member_of),
            placement: annotation(metadata, annotations::PLACEMENT).map(Arc::from),
            bound,
            pinned: spec
                .affinity
                .as_ref()
                .filter(|_| !held_back && owner.is_some_and(is_pinned_by_owner))
                .and_then(pin),
            nominated: NodeName::read(status.nominated_node_name.as_deref()).filter(|_| !held_back),
            requests: Arc::new(resized_pod_takes(spec, status)?),
            claims: spec.claims(),
            anti_affinity: spec.anti_affinity(),
            priority,
            preempts: spec.preemption_policy.as_deref() != Some("Never"),
            protected: owner.is_some_and(is_daemon_set)
                || annotation(metadata, MIRROR).is_some()
                || priority >= SYSTEM_PRIORITY,
            stage,
            foreign_gate: foreign_gate(&spec.scheduling_gates).map(Arc::from),
            refusal,
            grace: Duration::from_secs(grace(spec).unsigned_abs()),
            terminating: metadata.deletion_timestamp.as_ref().and_then(utc),
            disrupted: status.condition(types::DISRUPTION_TARGET, "True").is_some(),
            started: status.start_time.as_ref().or(created).and_then(utc),
            pending: status.phase == "Pending",
            last_checkpoint: annotation(metadata, annotations::LAST_CHECKPOINT)
                .and_then(checkpoint),
            may_end: spec
                .restart_policy
                .as_deref()
                .is_some_and(|p| p != "Always"),
            ends: deadline(spec, status),
        })
    }

    pub fn key(&self) -> Key {
        Key {
            namespace: Arc::clone(&self.namespace),
            name: Arc::clone(&self.name),
        }
    }

    /// Node whose capacity it holds: bound, else pinned, else nominated. `None` for ended pods.
    pub fn holds(&self) -> Option<&str> {
        self.held_node().map(NodeName::as_str)
    }

    pub(crate) fn held_node(&self) -> Option<&NodeName> {
        let nodes = [&self.bound, &self.pinned, &self.nominated];
        let node = nodes.into_iter().find_map(Option::as_ref);
        node.filter(|_| !self.ended())
    }

    /// Shares the text of the node's name with `held`.
    pub(crate) fn share_node_name(&mut self, held: &NodeName) {
        for name in [&mut self.bound, &mut self.pinned, &mut self.nominated] {
            if name.as_ref() == Some(held) {
                *name = Some(held.clone());
            }
        }
    }

    pub fn gated(&self) -> bool {
        self.stage == Stage::Gated
    }

    pub fn ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    pub fn alive(&self) -> bool {
        !self.ended() && self.terminating.is_none()
    }
}

/// First gate that Lockstep has not set and does not remove.
pub fn foreign_gate(gates: &[PodSchedulingGate]) -> Option<&str> {
    let mut names = gates.iter().map(|gate| gate.name.as_str());
    names.find(|name| *name != PREEMPTION_GATE)
}

/// Owner reference to the workload that controls a pod. Labels prove nothing: the admission policy
/// `config/policies/members.yaml` guards only owner references of this API group.
pub fn workload_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.find(|o| o.controller == Some(true) && is_workload(o))
}

fn is_workload(owner: &OwnerReference) -> bool {
    group_of(owner) == TrainingWorkload::group(&()) && owner.kind == TrainingWorkload::kind(&())
}

pub(crate) fn group_of(owner: &OwnerReference) -> &str {
    let group = owner.api_version.split_once('/');
    group.map_or("", |(group, _)| group)
}

/// Latest end of a pod: deadline plus grace period.
fn deadline(spec: &PodSpecView, status: &PodStatusView) -> Option<DateTime<Utc>> {
    let start = status.start_time.as_ref().and_then(utc)?;
    let seconds = spec.active_deadline_seconds?.checked_add(grace(spec))?;
    start.checked_add_signed(TimeDelta::try_seconds(seconds)?)
}

/// Seconds. A negative value in old objects means 1 (`validation.ValidatePodSpec`).
fn grace(spec: &PodSpecView) -> i64 {
    let grace = spec.termination_grace_period_seconds;
    grace.map_or(DEFAULT_GRACE, |g| if g < 0 { 1 } else { g })
}

/// True if the owner's controller chooses the node of each pod: such a pod holds capacity before it
/// is bound. Affinities of other pods do not count, because any user can write them.
fn is_pinned_by_owner(owner: &OwnerReference) -> bool {
    is_daemon_set(owner) || is_workload(owner)
}

/// Other API groups can have a kind of this name.
fn is_daemon_set(owner: &OwnerReference) -> bool {
    group_of(owner) == "apps" && owner.kind == "DaemonSet"
}

/// Labels for budget selectors, without labels that number a member. Pods of a workload thus share
/// one map.
fn shared_labels(metadata: &ObjectMeta) -> BTreeMap<String, String> {
    let mut all = metadata.labels.clone().unwrap_or_default();
    all.remove(labels::REPLICA);
    all.remove(labels::INDEX);
    all
}

/// Parses a last-checkpoint annotation (RFC 3339). An invalid value counts as absent.
pub fn checkpoint(text: &str) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc3339(text).ok().map(|t| t.to_utc())
}

/// The node that every term of the required affinity names in `matchFields`, as for members and
/// `DaemonSet` pods. Terms can name further nodes of the template. Empty terms match nothing.
fn pin(affinity: &Affinity) -> Option<NodeName> {
    let terms = &affinity
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?
        .node_selector_terms;
    let mut terms = terms.iter().filter(|t| !selects_nothing(t)).map(named);
    // The pin is the last node of a term.
    let mut common: Vec<&String> = terms.next()?;
    for others in terms {
        common.retain(|node| others.contains(node));
    }
    NodeName::read(common.last().map(|node| node.as_str()))
}

fn selects_nothing(term: &NodeSelectorTerm) -> bool {
    let empty = |list: &Option<Vec<_>>| list.as_ref().is_none_or(Vec::is_empty);
    empty(&term.match_fields) && empty(&term.match_expressions)
}

fn named(term: &NodeSelectorTerm) -> Vec<&String> {
    let mut nodes = Vec::new();
    for field in term.match_fields.iter().flatten() {
        if let Some([node]) = field.values.as_deref()
            && field.key == "metadata.name"
            && field.operator == "In"
        {
            nodes.push(node);
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(object: &Value) -> Pod {
        let part = |name: &str| object.get(name).cloned().unwrap_or_else(|| json!({}));
        let mut metadata = json!({"uid": "u", "namespace": "ml", "name": "p"});
        for (field, value) in part("metadata").as_object().unwrap() {
            metadata[field] = value.clone();
        }
        Pod::new(
            &serde_json::from_value(metadata).unwrap(),
            &serde_json::from_value(part("spec")).unwrap(),
            &serde_json::from_value(part("status")).unwrap(),
        )
        .unwrap()
    }

    fn pinned(terms: &Value) -> Option<String> {
        pinned_of("training.lockstep.dev/v1", "TrainingWorkload", terms)
    }

    fn pinned_of(group: &str, owner: &str, terms: &Value) -> Option<String> {
        let owner = json!([{"apiVersion": group, "kind": owner, "name": "x", "uid": "o", "controller": true}]);
        pod(
            &json!({"metadata": {"ownerReferences": owner}, "spec": {"affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}}),
        )
        .pinned
        .map(String::from)
    }

    #[test]
    fn a_foreign_pod_that_names_a_node_holds_nothing_before_it_is_bound() {
        let term = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]);
        for (group, owner, holds) in [
            ("batch/v1", "Job", None),
            ("apps/v1", "DaemonSet", Some("n1")),
            ("x.example/v1", "DaemonSet", None),
        ] {
            assert_eq!(pinned_of(group, owner, &term).as_deref(), holds);
        }
    }

    #[test]
    fn a_member_is_read_with_its_pin_gate_placement_and_owner() {
        let p = pod(&json!({
            "metadata": {"uid": "u", "namespace": "ml", "name": "llama-workers-1-2-abc",
                "labels": {labels::GROUP: "workers", labels::REPLICA: "1", labels::INDEX: "2", labels::POD_GROUP: "pg"},
                "annotations": {annotations::PLACEMENT: "p1", annotations::LAST_CHECKPOINT: "2026-11-21T10:00:00+01:00"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "X", "name": "x", "uid": "other"},
                    {"apiVersion": "training.lockstep.dev/v1", "kind": "TrainingWorkload", "name": "llama", "uid": "w",
                        "controller": true}]},
            "spec": {"schedulingGates": [{"name": PREEMPTION_GATE}], "priority": 7, "preemptionPolicy": "Never",
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}}}}}));
        assert_eq!(p.member, Some(Member::new("workers", 1, 2)));
        assert_eq!(
            (
                p.owner.as_ref().map(Uid::as_str),
                p.pod_group.as_deref(),
                p.placement.as_deref()
            ),
            (Some("w"), Some("pg"), Some("p1"))
        );
        assert_eq!(
            (p.holds(), p.stage, p.priority, p.preempts),
            (Some("n1"), Stage::Gated, 7, false)
        );
        assert_eq!(
            p.last_checkpoint.unwrap().to_rfc3339(),
            "2026-11-21T09:00:00+00:00"
        );
    }

    #[test]
    fn a_pod_is_pinned_only_when_every_term_names_the_same_node() {
        let named = |n: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [n]}]});
        assert_eq!(
            pinned(&json!([named("n1"), named("n1")])).as_deref(),
            Some("n1")
        );
        assert_eq!(pinned(&json!([named("n1"), named("n2")])), None);
        assert_eq!(
            pinned(
                &json!([named("n1"), {"matchExpressions": [{"key": "a", "operator": "Exists"}]}])
            ),
            None
        );
        assert_eq!(pinned(&json!([])), None);
    }

    #[test]
    fn the_pin_is_found_beside_nodes_that_the_template_names_and_beside_empty_terms() {
        let field = |n: &str| json!({"key": "metadata.name", "operator": "In", "values": [n]});
        let pinned_to = |terms| pinned(&terms);
        let either = json!([{"matchFields": [field("n1"), field("n2")]}, {"matchFields": [field("n2"), field("n2")]}]);
        assert_eq!(pinned_to(either).as_deref(), Some("n2"));
        let empty = json!([{}, {"matchFields": [field("n1")]}]);
        assert_eq!(pinned_to(empty).as_deref(), Some("n1"));
    }

    #[test]
    fn a_pod_holds_room_on_its_bound_node_else_its_nominated_node_until_it_ends() {
        let spec = json!({"nodeName": "n1"});
        assert_eq!(
            pod(&json!({"spec": spec, "status": {"nominatedNodeName": "n2"}})).holds(),
            Some("n1")
        );
        assert_eq!(
            pod(&json!({"status": {"nominatedNodeName": "n2"}})).holds(),
            Some("n2")
        );
        assert_eq!(
            pod(&json!({"spec": spec, "status": {"phase": "Failed"}})).holds(),
            None
        );
        assert_eq!(pod(&json!({"spec": {"nodeName": ""}})).holds(), None);
    }

    #[test]
    fn daemon_mirror_and_system_pods_are_never_victims() {
        let owner = |kind: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": "o", "controller": true}]);
        for (object, protected) in [
            (
                json!({"metadata": {"ownerReferences": owner("DaemonSet")}}),
                true,
            ),
            (
                json!({"metadata": {"ownerReferences": owner("ReplicaSet")}}),
                false,
            ),
            (json!({"metadata": {"annotations": {MIRROR: "x"}}}), true),
            (json!({"spec": {"priority": 2_000_001_000}}), true),
            (json!({"spec": {"priority": 1_999_999_999}}), false),
        ] {
            assert_eq!(pod(&object).protected, protected, "{object}");
        }
    }

    #[test]
    fn a_pod_ends_by_its_deadline_and_grace_and_may_end_unless_it_is_always_restarted() {
        let with = |spec: Value| {
            let p = pod(&json!({"spec": spec, "status": {"startTime": "2026-11-21T10:00:00Z"}}));
            (p.may_end, p.ends.map(|t| t.format("%H:%M:%S").to_string()))
        };
        let at = |t: &str| Some(t.to_owned());
        assert_eq!(with(json!({"restartPolicy": "Always"})), (false, None));
        assert_eq!(with(json!({"restartPolicy": "OnFailure"})), (true, None));
        let ends = json!({"restartPolicy": "Never", "activeDeadlineSeconds": 60});
        assert_eq!(with(ends), (true, at("10:01:30")));
        let graced = json!({"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 0});
        assert_eq!(with(graced), (false, at("10:01:00")));
        let waits = json!({"spec": {"activeDeadlineSeconds": 60}});
        assert_eq!(pod(&waits).ends, None, "it has not started");
    }

    #[test]
    fn a_refusal_by_kube_scheduler_is_distinguished_from_a_gate() {
        let with = |reason: &str| {
            pod(&json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason}]}}))
                .stage
        };
        assert_eq!(with("Unschedulable"), Stage::Refused);
        for reason in ["SchedulingGated", "SchedulerError"] {
            assert_eq!(with(reason), Stage::Open, "{reason}");
        }
    }

    #[test]
    fn a_gate_of_another_controller_is_named_beside_the_gate_of_the_operator() {
        let with = |gates: &[&str]| {
            let gates = gates.iter().map(|name| json!({"name": name}));
            let spec = json!({"schedulingGates": Value::Array(gates.collect())});
            let pod = pod(&json!({"spec": spec}));
            (pod.foreign_gate.as_deref().map(str::to_owned), pod.gated())
        };
        let foreign = "example.com/quota";
        let named = Some(foreign.to_owned());
        assert_eq!(with(&[]), (None, false));
        assert_eq!(with(&[PREEMPTION_GATE]), (None, true));
        assert_eq!(with(&[foreign]), (named.clone(), false));
        assert_eq!(with(&[PREEMPTION_GATE, foreign]), (named, true));
    }

    #[test]
    fn the_words_of_kube_scheduler_are_kept_while_it_refuses_the_pod_or_fails_over_it() {
        let with = |reason: &str, node: &str| {
            let condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/1 nodes"});
            pod(&json!({"spec": {"nodeName": node}, "status": {"conditions": [condition]}})).refusal
        };
        for reason in ["Unschedulable", "SchedulerError"] {
            assert_eq!(with(reason, "").as_deref(), Some("0/1 nodes"), "{reason}");
        }
        assert_eq!(
            (with("SchedulingGated", ""), with("Unschedulable", "n1")),
            (None, None)
        );
    }
}

//! Groups of identical members.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::template::PodTemplate;

/// The training container must not have restartPolicy Always. It is the container named by the
/// annotation, or the first if the annotation names none. (A CEL variable would nest two loops and
/// exceed the cost limit, so the expression has two branches.)
const TRAINING_ENDS: &str = "has(self.metadata) && has(self.metadata.annotations) \
    && 'kubectl.kubernetes.io/default-container' in self.metadata.annotations \
    && self.spec.containers.exists(c, c.name == self.metadata.annotations['kubectl.kubernetes.io/default-container']) \
    ? self.spec.containers.all(c, c.name != self.metadata.annotations['kubectl.kubernetes.io/default-container'] \
        || !has(c.restartPolicy) || c.restartPolicy != 'Always') \
    : size(self.spec.containers) == 0 || !has(self.spec.containers[0].restartPolicy) \
        || self.spec.containers[0].restartPolicy != 'Always'";

/// A group: `replicas` copies of `size` identical pods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.dependsOn.all(d, d.group != self.name)").message("a group cannot depend on itself"))]
pub struct Group {
    /// Name of the group, a DNS label. Pods are called
    /// `<workload>-<group>-<replica>-<index>-<hash>`.
    #[schemars(
        length(min = 1, max = 40),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Number of replicas (slices), 0 to 20000. Default: `spec.replicas`, or 1 if that is absent. A
    /// change while the gang runs restarts it once, uncounted, with the new world. Growth never
    /// evicts other pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 20000))]
    pub replicas: Option<i32>,
    /// Members (pods) per replica, 1 to 20000, default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 20000))]
    pub size: i32,
    /// With `scheduling.gang.scope: Group`: members that must be placed together, 1 to replicas x
    /// size. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20000))]
    pub min_count: Option<i32>,
    /// Groups that must be ready, or have succeeded, before each start of this group. Only groups
    /// earlier in the list. If members of such a group restart or lose their nodes, this group stops,
    /// uncounted, and starts again after it.
    #[serde(default)]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["group".into()]))]
    pub depends_on: Vec<Dependency>,
    /// Template of the group's pods. `restartPolicy` of the pod and of the training container must
    /// be absent, Never or OnFailure. The training container is the one named by annotation
    /// `kubectl.kubernetes.io/default-container`, else the first.
    #[x_kube(
        validation = Rule::new("size(self.spec.containers) > 0").message("must have at least one container"),
        validation = Rule::new("!has(self.metadata) || !has(self.metadata.labels) || self.metadata.labels.all(k, k == 'training.lockstep.dev/evictable' || !k.startsWith('training.lockstep.dev/'))")
            .message("labels with the prefix training.lockstep.dev/ are set by the operator, except training.lockstep.dev/evictable"),
        validation = Rule::new("!has(self.metadata) || !has(self.metadata.annotations) || self.metadata.annotations.all(k, !k.startsWith('training.lockstep.dev/'))")
            .message("annotations with the prefix training.lockstep.dev/ are set by the operator"),
        validation = Rule::new("!has(self.spec.nodeName) || self.spec.nodeName == ''").message("nodeName is chosen by the operator; use nodeSelector or affinity"),
        validation = Rule::new("!has(self.spec.schedulingGates) || size(self.spec.schedulingGates) == 0").message("schedulingGates are set by the operator; use spec.suspend to hold a workload back"),
        validation = Rule::new("!has(self.spec.hostname) && !has(self.spec.subdomain)").message("hostname and subdomain are set by the operator; see spec.network"),
        validation = Rule::new("!has(self.spec.restartPolicy) || self.spec.restartPolicy != 'Always'").message("restartPolicy must be Never or OnFailure: training ends"),
        validation = Rule::new(TRAINING_ENDS).message("restartPolicy of the training container must be Never or OnFailure: training ends"),
        validation = Rule::new("!has(self.spec.priorityClassName) && !has(self.spec.priority)").message("set spec.priorityClassName of the workload: all its pods have one priority")
    )]
    pub template: PodTemplate,
}

/// A dependency on another group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Dependency {
    /// Name of an earlier group.
    #[schemars(length(min = 1, max = 40))]
    pub group: String,
    /// Required state of that group.
    #[serde(default)]
    pub condition: DependencyCondition,
}

/// Required state of a dependency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DependencyCondition {
    /// All members are ready or have succeeded. Broken while members that have not succeeded restart
    /// or have no placement; with policy Basic or `minCount`, while fewer members than needed have
    /// one.
    #[default]
    Ready,
    /// All members have succeeded. Never broken after that.
    Succeeded,
}

fn one() -> i32 {
    1
}

//! Names, labels and annotations. If the CEL rules of the workload hold, every derived name is
//! valid: hostnames are DNS labels of at most 63 characters.

use std::collections::BTreeMap;
use std::hash::Hasher;

use chrono::{DateTime, Utc};

use crate::member::Member;

/// Prefix of all labels, annotations and gates of Lockstep. Templates must not use it.
pub const PREFIX: &str = "training.lockstep.dev/";

/// Value of `spec.managedBy` for workloads of this operator.
pub const MANAGED_BY: &str = "lockstep.dev/operator";

/// Labels on pods (and, for [`labels::WORKLOAD_UID`], on every object of a workload). They are for
/// selection and display; only the owner UID decides ownership.
pub mod labels {
    /// Name of the workload.
    pub const WORKLOAD: &str = "training.lockstep.dev/workload";
    /// UID of the workload.
    pub const WORKLOAD_UID: &str = "training.lockstep.dev/workload-uid";
    /// Name of the group.
    pub const GROUP: &str = "training.lockstep.dev/group";
    /// Replica of the group.
    pub const REPLICA: &str = "training.lockstep.dev/replica";
    /// Index in the replica.
    pub const INDEX: &str = "training.lockstep.dev/index";
    /// Key of the restart domain.
    pub const DOMAIN: &str = "training.lockstep.dev/domain";
    /// Name of the PodGroup.
    pub const POD_GROUP: &str = "training.lockstep.dev/pod-group";
    /// On any pod, set by its users: `false` protects the pod from preemption by gangs.
    pub const EVICTABLE: &str = "training.lockstep.dev/evictable";
    /// Selector of the headless Service: UID of the workload. It is removed from a pod before its
    /// replacement is created, because the Service would still publish the terminating pod.
    pub const PUBLISHED: &str = "training.lockstep.dev/published";
}

/// Annotations on pods and workloads.
pub mod annotations {
    /// On pods: version and hash of the parts of the workload's spec from which the pod was created.
    pub const SPEC_HASH: &str = "training.lockstep.dev/spec-hash";
    /// On pods: restart tier, chosen from the placed node (`supervised`, `restart-all`,
    /// `restart-rules`, `plain`).
    pub const TIER: &str = "training.lockstep.dev/restart-tier";
    /// On pods: attempt of the restart domain at the creation of the pod.
    pub const ATTEMPT: &str = "training.lockstep.dev/attempt";
    /// On pods: id of the placement that chose the node.
    pub const PLACEMENT: &str = "training.lockstep.dev/placement";
    /// On a workload or a pod of another controller, written by its user: time of the last
    /// checkpoint, RFC 3339.
    pub const LAST_CHECKPOINT: &str = "training.lockstep.dev/last-checkpoint";
    /// On a workload, written by a user: id of a request for a checkpoint. Nothing is stopped.
    pub const REQUEST_CHECKPOINT: &str = "training.lockstep.dev/request-checkpoint";
    /// On a priority class, written by an administrator: longest wait of its gangs for checkpoints of
    /// their victims, such as `30s`. A value above the configured wait is ignored.
    pub const CHECKPOINT_WAIT: &str = "training.lockstep.dev/checkpoint-wait";
    /// On a priority class, written by an administrator: priority of running gangs of the class
    /// against preemptors. A value below the class's own value is ignored.
    pub const PREEMPTION_PRIORITY: &str = "training.lockstep.dev/preemption-priority";
    /// On a priority class, written by an administrator: whether Lockstep may preempt for gangs of
    /// the class (`PreemptLowerPriority`, `Never`). Default: `preemptionPolicy` of the class, which
    /// also binds kube-scheduler.
    pub const PREEMPTION_POLICY: &str = "training.lockstep.dev/preemption-policy";
    /// On a Namespace: its weight in the queue, a number; default 1. Among gangs of equal priority,
    /// the scheduler first serves the namespace with the smallest share of the cluster in
    /// proportion to its weight.
    pub const FAIR_SHARE_WEIGHT: &str = "training.lockstep.dev/fair-share-weight";
    /// On a workload, written by its user: class of its `ProvisioningRequest`s, instead of the
    /// configured one.
    pub const PROVISIONING_CLASS: &str = "training.lockstep.dev/provisioning-class";
    /// Prefix of annotations on a workload, written by its user: the rest is the name of a parameter
    /// of its `ProvisioningRequest`s.
    pub const PROVISIONING_PARAMETER: &str = "provreq.training.lockstep.dev/";
}

/// Default name of the managers' lease.
pub const LEASE: &str = "lockstep-leader";

/// Name of the supervisor program, and of the init container or image volume that provides it.
pub const SUPERVISOR_PROGRAM: &str = "lockstep-run";

/// Feature in `status.declaredFeatures` of a node whose kubelet can restart all containers of a pod
/// (KEP-5532, KEP-5328).
pub const RESTART_ALL_FEATURE: &str = "RestartAllContainersOnContainerExits";

/// Volume of a supervised pod with the supervisor and its socket: an emptyDir on the node's disk.
/// The agent finds it by this name in the kubelet's folder of the pod.
pub const SUPERVISOR_VOLUME: &str = "lockstep";

/// Mount path of the volume in the pod's containers.
pub const SUPERVISOR_DIR: &str = "/lockstep";

/// Mount path of the supervisor's image where the node mounts images.
pub const SUPERVISOR_IMAGE_DIR: &str = "/lockstep-run";

/// Scheduler of pods without `schedulerName`.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// Scheduling gate of a preemptor's pods. The pods exist, so quota and policies have accepted them,
/// but they wait for the victims to terminate.
pub const PREEMPTION_GATE: &str = "training.lockstep.dev/preemption";

/// Extended resources that count as accelerators by default.
pub const ACCELERATORS: [&str; 5] = [
    "nvidia.com/gpu",
    "amd.com/gpu",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
];

/// Hash of the parts as eight hexadecimal digits, stable across versions of this program (FNV-1a).
/// A separator distinguishes ("a", "bc") from ("ab", "c").
pub fn short_hash(parts: &[&str]) -> String {
    let mut h = fnv::FnvHasher::default();
    for p in parts {
        h.write(p.as_bytes());
        h.write_u8(0);
    }
    let v = h.finish();
    format!("{:08x}", (v ^ (v >> 32)) as u32)
}

/// Returns the member of a pod from its labels; `None` if a label is missing or not a number from
/// 0. Other clients can set such labels, too.
pub fn member_of(pod_labels: &BTreeMap<String, String>) -> Option<Member> {
    let number = |key| {
        let number: i32 = pod_labels.get(key)?.parse().ok()?;
        (number >= 0).then_some(number)
    };
    let group = pod_labels.get(labels::GROUP)?;
    Some(Member::new(
        group,
        number(labels::REPLICA)?,
        number(labels::INDEX)?,
    ))
}

/// Stable hostname of a member, `<workload>-<group>-<replica>-<index>`.
pub fn hostname(workload: &str, member: &Member) -> String {
    format!("{workload}-{member}")
}

/// Name of a member's pod: the hostname and a hash of workload UID, member and the UID of the
/// replaced pod, if any. Each replacement has one deterministic name. So a repeated create returns
/// 409 for the operator's own pod, and a new pod never collides with a terminating one.
pub fn pod_name(
    workload: &str,
    workload_uid: &str,
    member: &Member,
    replaces: Option<&str>,
) -> String {
    let host = hostname(workload, member);
    let hash = short_hash(&[workload_uid, &host, replaces.unwrap_or_default()]);
    format!("{host}-{hash}")
}

/// Name of a gang's PodGroup. The hash of the workload's UID distinguishes workload `a` with group
/// `b-c` from workload `a-b` with group `c`. The name becomes a label value of the gang's pods, so
/// long workload names are truncated.
pub fn pod_group_name(workload: &str, workload_uid: &str, gang_key: &str) -> String {
    let key = gang_key.replace('.', "-");
    let hash = short_hash(&[workload_uid, gang_key]);
    let workload = cut(workload, key.len());
    format!("{workload}-{key}-{hash}")
}

/// Name of a workload's native `Workload`. Its templates are immutable, so other templates need
/// another name.
pub fn native_workload_name(workload: &str, workload_uid: &str, templates: &str) -> String {
    let hash = short_hash(&[workload_uid, templates]);
    format!("{}-{hash}", cut(workload, 0))
}

/// Name of the `ProvisioningRequest` for a try of a gang's node demand. Each try has its own, because
/// the spec of a request is immutable and its failure final.
pub fn provisioning_request_name(pod_group: &str, number: i32, since: DateTime<Utc>) -> String {
    let hash = short_hash(&[pod_group, &since.to_rfc3339()]);
    format!("{pod_group}-{number}-{hash}")
}

/// Name of the signal pod of a member for a try of its gang's node demand. Signal pods of all
/// namespaces share one namespace.
pub fn signal_pod_name(
    workload: &str,
    workload_uid: &str,
    member: &Member,
    number: i32,
    since: DateTime<Utc>,
) -> String {
    let host = hostname(workload, member);
    let hash = short_hash(&[
        workload_uid,
        &host,
        &number.to_string(),
        &since.to_rfc3339(),
    ]);
    format!("{host}-{hash}")
}

/// Common prefix of the names of a workload's PodGroups and native groups. [`pod_group_name`] keeps
/// at least this prefix of the workload's name: the longest key has 46 characters. Hostnames limit
/// name and key together, so at most 12 characters are truncated.
pub fn pod_group_prefix(workload: &str) -> &str {
    let shortest = MAX_LABEL_VALUE - 46 - HASH - 2;
    let left = shortest.max(workload.len().saturating_sub(12));
    let prefix = workload.get(..left).unwrap_or(workload);
    prefix.trim_end_matches(['-', '.'])
}

/// The workload's name, truncated for the name of a PodGroup with a key of this length.
fn cut(workload: &str, key: usize) -> &str {
    let left = MAX_LABEL_VALUE.saturating_sub(key + HASH + 2);
    // Names are ASCII; other text is not a name.
    let workload = workload.get(..left).unwrap_or(workload);
    workload.trim_end_matches(['-', '.'])
}

/// Characters of a [`short_hash`].
const HASH: usize = 8;

/// Longest label value, and longest DNS label.
const MAX_LABEL_VALUE: usize = 63;

/// Key of the gang or restart domain of the whole workload.
pub const WHOLE: &str = "workload";

/// Key of a gang or restart domain that is one replica of a group. Group names contain no dot, so
/// keys never collide, and every key is a valid label value.
pub fn replica_key(group: &str, replica: i32) -> String {
    format!("{group}.{replica}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_workload_and_group_names_never_make_the_same_pod_group_or_pod() {
        assert_ne!(
            pod_group_name("a", "u1", "b-c"),
            pod_group_name("a-b", "u2", "c")
        );
        assert_ne!(
            pod_name("a", "u1", &Member::new("b-c", 0, 0), None),
            pod_name("a-b", "u2", &Member::new("c", 0, 0), None)
        );
    }

    #[test]
    fn the_pod_group_of_the_longest_workload_is_a_valid_label_value() {
        let longest = "a".repeat(MAX_LABEL_VALUE - "-g-0-0".len());
        let key = replica_key(&"g".repeat(40), 19_999);
        for (workload, key) in [(longest.as_str(), WHOLE), (&longest, &key), ("a-b", WHOLE)] {
            let name = pod_group_name(workload, "uid", key);
            assert!(name.len() <= MAX_LABEL_VALUE, "{name}");
        }
        let cut = format!("{}-x", "a".repeat(MAX_LABEL_VALUE - 19));
        assert!(!pod_group_name(&cut, "uid", WHOLE).contains("--"));
        for (workload, key) in [(longest.as_str(), WHOLE), (&cut, WHOLE), ("a-b", &key)] {
            assert!(pod_group_name(workload, "uid", key).starts_with(pod_group_prefix(workload)));
        }
    }

    #[test]
    fn a_replacement_has_another_name_and_a_repeated_create_the_same() {
        let m = Member::new("workers", 0, 3);
        assert_eq!(pod_name("w", "u", &m, None), pod_name("w", "u", &m, None));
        assert_ne!(
            pod_name("w", "u", &m, None),
            pod_name("w", "u", &m, Some("old"))
        );
    }
}

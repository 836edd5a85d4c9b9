//! Names, labels and annotations. Lengths are chosen so that every name that we derive is valid
//! when the CEL rules of the workload hold: hostnames are DNS labels of at most 63 characters.

use std::collections::BTreeMap;
use std::hash::Hasher;

use crate::member::Member;

/// Prefix of every label, annotation, gate and condition of ours. Templates may not use it.
pub const PREFIX: &str = "training.lockstep.dev/";

/// Value of `spec.managedBy` for workloads that this operator acts on.
pub const MANAGED_BY: &str = "lockstep.dev/operator";

/// Labels on pods (and, for [`labels::WORKLOAD_UID`], on every object made for a workload). They
/// select and display; ownership is decided by owner UID alone.
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
    /// On pods of anybody, for their users to set: `false` keeps the pod from being evicted for a
    /// gang.
    pub const EVICTABLE: &str = "training.lockstep.dev/evictable";
    /// The label that the headless Service selects by: UID of the workload. It is taken off a pod
    /// before its replacement is made, because a terminating pod stays published otherwise.
    pub const PUBLISHED: &str = "training.lockstep.dev/published";
}

/// Annotations on pods and workloads.
pub mod annotations {
    /// On pods: hash of the parts of the workload's spec that the pod was made from.
    pub const SPEC_HASH: &str = "training.lockstep.dev/spec-hash";
    /// On pods: restart tier decided from the placed node (`supervised`, `restart-all`,
    /// `restart-rules`, `plain`).
    pub const TIER: &str = "training.lockstep.dev/restart-tier";
    /// On pods: attempt of the restart domain at which the pod was made.
    pub const ATTEMPT: &str = "training.lockstep.dev/attempt";
    /// On pods: id of the placement that chose the node.
    pub const PLACEMENT: &str = "training.lockstep.dev/placement";
    /// On a workload or a foreign pod, written by its user: time of the last checkpoint, RFC 3339.
    pub const LAST_CHECKPOINT: &str = "training.lockstep.dev/last-checkpoint";
    /// On a priority class, written by an administrator: the priority that gangs of the class have
    /// when others want their capacity, once they run. One below the value of the class is not
    /// heeded.
    pub const PREEMPTION_PRIORITY: &str = "training.lockstep.dev/preemption-priority";
    /// On a Namespace: its weight in the queue, a number; 1 without it. Of gangs of one priority those
    /// are served first whose namespace has the least of the cluster in proportion to this.
    pub const FAIR_SHARE_WEIGHT: &str = "training.lockstep.dev/fair-share-weight";
}

/// Lease of the managers, unless it is configured otherwise.
pub const LEASE: &str = "lockstep-leader";

/// Name of the supervisor: of its program, and of the init container that copies it.
pub const SUPERVISOR_PROGRAM: &str = "lockstep-run";

/// Feature that a kubelet declares in `status.declaredFeatures` of its node when it can restart all
/// containers of a pod (KEP-5532, KEP-5328).
pub const RESTART_ALL_FEATURE: &str = "RestartAllContainersOnContainerExits";

/// Volume of a supervised pod that the supervisor is copied to and listens in: an emptyDir on the
/// node's disk. The agent finds it by this name in the kubelet's folder of the pod.
pub const SUPERVISOR_VOLUME: &str = "lockstep";

/// Where containers of the pod mount it.
pub const SUPERVISOR_DIR: &str = "/lockstep";

/// Who binds pods that name no scheduler.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// Scheduling gate of a preemptor's pods: they exist (quota and policies have accepted them) but
/// wait for the victims.
pub const PREEMPTION_GATE: &str = "training.lockstep.dev/preemption";

/// Extended resources that count as accelerators unless the configuration says otherwise.
pub const ACCELERATORS: [&str; 5] = [
    "nvidia.com/gpu",
    "amd.com/gpu",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
];

/// Eight hexadecimal digits over the parts, stable across versions of this program (FNV-1a). A
/// separator keeps ("a", "bc") and ("ab", "c") apart.
pub fn short_hash(parts: &[&str]) -> String {
    let mut h = fnv::FnvHasher::default();
    for p in parts {
        h.write(p.as_bytes());
        h.write_u8(0);
    }
    let v = h.finish();
    format!("{:08x}", (v ^ (v >> 32)) as u32)
}

/// The member that a pod is, by its labels. Absent where one is missing or is no number from 0: labels
/// of others are possible.
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

/// Name of a member's pod: the hostname and a hash of workload UID, member and the UID of the pod
/// that it replaces, if there was one. The same step of the same history always names the same
/// pod, so a repeated create is a 409 on our own object; a new incarnation never collides with an
/// old one that is still terminating.
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

/// Name of a gang's PodGroup. The hash of the workload's UID keeps workload `a` with group `b-c`
/// and workload `a-b` with group `c` apart. The name is the value of a label of the gang's pods, so
/// that of a long workload is cut.
pub fn pod_group_name(workload: &str, workload_uid: &str, gang_key: &str) -> String {
    let key = gang_key.replace('.', "-");
    let hash = short_hash(&[workload_uid, gang_key]);
    let workload = cut(workload, key.len());
    format!("{workload}-{key}-{hash}")
}

/// What the names of all PodGroups of a workload begin with, cut or not: the longest key has 46
/// characters, and hostnames, which hold name and key, leave at most 12 to be cut.
pub fn pod_group_prefix(workload: &str) -> &str {
    let shortest = MAX_LABEL_VALUE - 46 - HASH - 2;
    let left = shortest.max(workload.len().saturating_sub(12));
    let prefix = workload.get(..left).unwrap_or(workload);
    prefix.trim_end_matches(['-', '.'])
}

/// The part of a workload's name that is left in the name of a PodGroup with a key of that length.
fn cut(workload: &str, key: usize) -> &str {
    let left = MAX_LABEL_VALUE.saturating_sub(key + HASH + 2);
    // Names are ASCII; what is not is no name.
    let workload = workload.get(..left).unwrap_or(workload);
    workload.trim_end_matches(['-', '.'])
}

/// Characters of a [`short_hash`].
const HASH: usize = 8;

/// Longest value of a label, and longest DNS label.
const MAX_LABEL_VALUE: usize = 63;

/// Key of the one gang or domain that holds the whole workload.
pub const WHOLE: &str = "workload";

/// Key of a gang or restart domain that is one replica of a group. A dot cannot occur in a group
/// name, so keys never collide, and a key is a valid label value.
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

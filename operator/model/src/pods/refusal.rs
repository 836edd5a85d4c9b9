//! Messages of kube-scheduler about a pod that it cannot schedule.
//!
//! Members are pinned, so kube-scheduler evaluates one node. Messages have the format of `FitError`
//! (`pkg/scheduler/framework/types.go`): `0/N nodes are available: REASONS. REPORT OF PREEMPTION`.
//! The reasons are counted and separated by commas.

/// Separates the node count from the reasons.
const PREAMBLE: &str = " nodes are available: ";
/// Reasons for nodes that the pin rules out: unevaluated nodes with plugin names since 1.24,
/// evaluated nodes before.
const RULED_OUT: [&str; 2] = [
    "node(s) didn't satisfy plugin(s) [",
    "node(s) didn't match Pod's node affinity/selector",
];

/// Resources other than capacity that other pods hold: `NodePorts`, `VolumeRestrictions`,
/// `NodeVolumeLimits`, `PodTopologySpread`, `InterPodAffinity`.
const HELD: [&str; 7] = [
    "node(s) didn't have free ports for the requested pod ports",
    "node(s) had no available disk",
    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
    "node(s) exceed max volume count",
    "node(s) didn't match pod topology spread constraints",
    "node(s) didn't satisfy existing pods anti-affinity rules",
    "node(s) didn't match pod anti-affinity rules",
];

/// True if kube-scheduler has a node for the pod, but not for enough members of its native group. The
/// member without a node has a message of its own.
pub fn concerns_group(message: &str) -> bool {
    message.starts_with("minCount (")
}

/// True if a pinned pod was refused only for capacity, which an eviction can free. False for
/// unknown reasons.
pub fn lacks_capacity_only(message: &str) -> bool {
    let candidate = on_pinned_node(message);
    !candidate.is_empty() && candidate.iter().all(|reason| lack_of_capacity(reason))
}

/// True if the reason can end with terminating pods on the node: capacity, host ports,
/// anti-affinity, claims and volumes. False for taints and for devices (DRA).
pub fn may_end_with_others(message: &str) -> bool {
    let candidate = on_pinned_node(message);
    let held = |reason: &&str| lack_of_capacity(reason) || HELD.contains(&uncounted(reason));
    !candidate.is_empty() && candidate.iter().all(held)
}

/// True if the pod was refused for its volume claims (`VolumeBinding`, before nodes are evaluated).
pub fn misses_claim(message: &str) -> bool {
    let why = why_refused(message);
    why.contains("unbound immediate PersistentVolumeClaims")
        || why.contains("persistentvolumeclaim \"")
}

/// True if the pod waits only for a claim that is created with it (generic ephemeral volumes,
/// `VolumeBinding`). Their controller is rate-limited, and a large gang has many claims.
pub fn awaits_own_claim(message: &str) -> bool {
    why_refused(message).contains("waiting for ephemeral volume controller to create")
}

/// Reasons of a pinned pod's refusal, without ruled-out nodes and kube-scheduler's own preemption.
/// Otherwise the whole message.
pub fn why_refused(message: &str) -> String {
    let candidate = on_pinned_node(message);
    if candidate.is_empty() {
        message.to_owned()
    } else {
        candidate.join(", ")
    }
}

fn on_pinned_node(message: &str) -> Vec<&str> {
    let reasons = message
        .split_once(PREAMBLE)
        .map_or(message, |(_, reasons)| reasons);
    let reasons = reasons
        .split_once(". ")
        .map_or(reasons, |(reasons, _)| reasons);
    let reasons = reasons.strip_suffix('.').unwrap_or(reasons);
    reasons
        .split(", ")
        .filter(|reason| !reason.is_empty() && !ruled_out_by_pin(reason))
        .collect()
}

fn ruled_out_by_pin(reason: &str) -> bool {
    let [plugins, affinity] = RULED_OUT;
    let reason = uncounted(reason);
    reason == affinity
        || reason
            .strip_prefix(plugins)
            .is_some_and(|names| names.contains("NodeAffinity"))
}

fn lack_of_capacity(reason: &str) -> bool {
    let reason = uncounted(reason);
    reason == "Too many pods" || reason.starts_with("Insufficient ")
}

/// A reason without the leading number of nodes.
fn uncounted(reason: &str) -> &str {
    reason
        .trim_start_matches(|c: char| c.is_ascii_digit())
        .trim_start()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of kube-scheduler 1.37.2 about pods pinned to one of three nodes, the part about
    /// that node, and whether only capacity is missing.
    const RECORDED: [(&str, &str, bool); 9] = [
        (
            "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. \
             preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful \
             for scheduling.",
            "1 Insufficient nvidia.com/gpu",
            true,
        ),
        (
            "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity \
             NodeResourcesFit]. preemption: found a potential placement for pod on node n2, preempting 1 victims",
            "1 Insufficient nvidia.com/gpu",
            true,
        ),
        (
            "0/3 nodes are available: 1 Insufficient cpu, 1 Too many pods, 2 node(s) didn't satisfy plugin(s) [NodeAffinity].",
            "1 Insufficient cpu, 1 Too many pods",
            true,
        ),
        (
            "0/3 nodes are available: persistentvolumeclaim \"none\" not found. not found",
            "persistentvolumeclaim \"none\" not found",
            false,
        ),
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. \
             preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
            "1 node(s) had untolerated taint(s)",
            false,
        ),
        (
            "0/3 nodes are available: 1 node(s) didn't match pod anti-affinity rules, 2 node(s) didn't satisfy plugin(s) \
             [NodeAffinity]. preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption \
             is not helpful for scheduling.",
            "1 node(s) didn't match pod anti-affinity rules",
            false,
        ),
        (
            "0/3 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 2 node(s) didn't satisfy \
             plugin(s) [NodeAffinity]. preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 \
             Preemption is not helpful for scheduling.",
            "1 node(s) didn't have free ports for the requested pod ports",
            false,
        ),
        (
            "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had volume node affinity conflict.",
            "1 Insufficient nvidia.com/gpu, 1 node(s) had volume node affinity conflict",
            false,
        ),
        (
            "running PreFilter plugin \"X\": broken",
            "running PreFilter plugin \"X\": broken",
            false,
        ),
    ];

    #[test]
    fn a_claim_created_with_its_pod_is_distinguished_from_a_missing_claim() {
        let waits = "0/3 nodes are available: waiting for ephemeral volume controller to create the \
                     persistentvolumeclaim \"high-0-scratch\". not found";
        assert!(awaits_own_claim(waits));
        let all = RECORDED.map(|(message, ..)| awaits_own_claim(message));
        assert_eq!(all, [false; 9]);
    }

    #[test]
    fn only_insufficient_resources_and_too_many_pods_are_a_lack_of_capacity() {
        for (message, why, capacity) in RECORDED {
            assert_eq!(
                (lacks_capacity_only(message), why_refused(message).as_str()),
                (capacity, why),
                "{message}"
            );
        }
        assert!(!lacks_capacity_only(""));
    }

    #[test]
    fn only_refusals_for_resources_of_other_pods_may_end_with_those_pods() {
        let may_end = RECORDED.map(|(message, ..)| may_end_with_others(message));
        let expected = [true, true, true, false, false, true, true, false, false];
        assert_eq!(may_end, expected);
        assert!(!may_end_with_others(""));
    }

    #[test]
    fn a_missing_or_unbound_claim_is_distinguished_from_other_obstacles() {
        let misses: Vec<bool> = RECORDED
            .iter()
            .map(|(message, ..)| misses_claim(message))
            .collect();
        let mut expected = [false; RECORDED.len()];
        expected[3] = true;
        assert_eq!(misses, expected);
        let unbound =
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found";
        assert!(misses_claim(unbound));
    }

    #[test]
    fn if_every_node_is_excluded_the_reason_is_the_whole_message_and_not_capacity() {
        for message in [
            "0/3 nodes are available: 3 node(s) didn't satisfy plugin(s) [NodeAffinity]. preemption: 0/3 nodes are available: \
             3 Preemption is not helpful for scheduling.",
            "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 2 node(s) didn't satisfy plugin(s) \
             [NodeAffinity]. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
        ] {
            assert_eq!(
                (lacks_capacity_only(message), why_refused(message).as_str()),
                (false, message)
            );
        }
    }
}

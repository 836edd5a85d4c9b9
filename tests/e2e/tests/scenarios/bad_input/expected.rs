//! Expected results of the manifests in `bad-input`.

use lockstep_api::condition::{reasons, types};

/// File, HTTP code, and required parts of the message. Files with the same number are variants of a
/// mistake.
pub(super) const REFUSED: &[(&str, u16, &str)] = &[
    (
        "01-unknown-field",
        400,
        r#"unknown field "spec.groups[0].replica""#,
    ),
    (
        "02-negative-replicas",
        422,
        "spec.groups[0].replicas in body should be greater than or equal to 0",
    ),
    (
        "02-size-zero",
        422,
        "spec.groups[0].size in body should be greater than or equal to 1",
    ),
    (
        "03-replicas-beyond-int32",
        422,
        "spec.groups[0].replicas in body should be less than or equal to 20000",
    ),
    (
        "03-fractional-replicas",
        422,
        "spec.groups[0].replicas in body must be of type int32",
    ),
    (
        "03-quoted-replicas",
        422,
        "spec.groups[0].replicas in body must be of type integer",
    ),
    (
        "04-too-many-members",
        422,
        "replicas x size over all groups must be at most 20000 members",
    ),
    (
        "04-beyond-int32",
        422,
        "replicas x size over all groups must be at most 20000 members",
    ),
    (
        "05-min-count-above-members",
        422,
        "scheduling.gang.minCount must be at most the number of members",
    ),
    (
        "06-duplicate-groups",
        422,
        r#"spec.groups[1]: Duplicate value: {"name":"workers"}"#,
    ),
    (
        "06-duplicate-levels",
        422,
        "scheduling.topology.levels repeats key example.com/block: a key may occur once with scope Gang and once with scope Replica",
    ),
    (
        "06-levels-and-key",
        422,
        "scheduling.topology needs levels, 1 to 4, or key for one level",
    ),
    (
        "07-no-groups",
        422,
        "spec.groups in body should have at least 1 items",
    ),
    ("07-no-containers", 422, "must have at least one container"),
    (
        "08-uppercase-group",
        422,
        "spec.groups[0].name in body should match",
    ),
    (
        "08-emoji-group",
        422,
        "spec.groups[0].name in body should match",
    ),
    (
        "08-long-group",
        422,
        "spec.groups[0].name: Too long: may not be more than 40 bytes",
    ),
    (
        "09-long-name",
        422,
        "hostnames <name>-<group>-<replica>-<index> are limited to 63 characters",
    ),
    (
        "09-generated-name",
        422,
        "hostnames <name>-<group>-<replica>-<index> are limited to 63 characters",
    ),
    (
        "09-dotted-name",
        422,
        "metadata.name: Invalid value: metadata.name must be a DNS label",
    ),
    (
        "11-zero-deadline",
        422,
        "spec.activeDeadlineSeconds in body should be greater than or equal to 1",
    ),
    (
        "11-negative-timeout",
        422,
        "spec.scheduling.timeoutSeconds in body should be greater than or equal to 0",
    ),
    (
        "11-duration-string",
        422,
        "spec.ttlSecondsAfterFinished in body must be of type integer",
    ),
    (
        "11-three-hundred-years",
        422,
        "spec.activeDeadlineSeconds in body should be less than or equal to 31536000",
    ),
    (
        "12-huge-restart-limit",
        422,
        "maxRestarts in body should be less than or equal to 100",
    ),
    (
        "14-exit-code-zero",
        422,
        "exitCodes.values[0] in body should be greater than or equal to 1",
    ),
    (
        "14-exit-code-300",
        422,
        "exitCodes.values[0] in body should be less than or equal to 255",
    ),
    ("15-duplicate-rules", 422, "rule names must be unique"),
    (
        "15-progress-without-supervisor",
        422,
        "progress is watched by the supervisor: inPlace.supervisor must be Auto",
    ),
    (
        "15-progress-of-five-seconds",
        422,
        "progress.timeoutSeconds in body should be greater than or equal to 10",
    ),
    ("16-self-dependency", 422, "a group cannot depend on itself"),
    (
        "16-cycle",
        422,
        "dependsOn may only name groups that precede this group in spec.groups",
    ),
    (
        "16-unknown-group",
        422,
        "dependsOn may only name groups that precede this group in spec.groups",
    ),
    (
        "16-dependency-within-a-gang",
        422,
        "dependsOn needs scheduling.gang.scope Group or Replica",
    ),
    (
        "19-forged-label",
        422,
        "labels with the prefix training.lockstep.dev/ are set by the operator",
    ),
    (
        "19-forged-annotation",
        422,
        "annotations with the prefix training.lockstep.dev/ are set by the operator",
    ),
    ("19-chosen-node", 422, "nodeName is chosen by the operator"),
    (
        "19-restarts-always",
        422,
        "restartPolicy of the training container must be Never or OnFailure",
    ),
    (
        "19-scheduling-gate",
        422,
        "schedulingGates are set by the operator",
    ),
    (
        "27-other-namespace",
        400,
        r#"unknown field "spec.groups[0].template.metadata.namespace""#,
    ),
    (
        "28-priority-in-template",
        422,
        "set spec.priorityClassName of the workload",
    ),
    (
        "28-system-priority-class",
        422,
        "the classes system-* belong to the cluster's own components",
    ),
    (
        "31-not-a-quantity",
        422,
        "spec.groups[0].template.spec.containers[0].resources.requests.memory in body should match",
    ),
    (
        "33-replicas-of-no-group",
        422,
        "spec.replicas: Invalid value: replicas counts the group without groups[].replicas, and all groups have them",
    ),
    (
        "33-replicas-of-two-groups",
        422,
        "spec.replicas: Invalid value: replicas counts one group, and several have no groups[].replicas",
    ),
];

/// The valid workload for the edits below.
pub(super) const BASE: &str = "17-base";

/// Edits of a running workload that are all refused with 422.
pub(super) const EDITS: &[(&str, &str)] = &[
    (
        "17-template-edit",
        "groups[].template is immutable while running; set spec.suspend: true to change it",
    ),
    (
        "17-size-edit",
        "groups[].size and dependsOn are immutable while running",
    ),
    (
        "17-backend-edit",
        "scheduling is immutable while running, except minCount and timeouts; set spec.suspend: true to change it",
    ),
    (
        "17-group-added",
        "groups cannot be added, removed, renamed or reordered",
    ),
    ("17-managed-by-edit", "managedBy is immutable"),
];

/// Expected state of the last workload of an accepted manifest.
pub(super) enum Outcome {
    /// The workload has no pod, and a condition has this type, status, reason and message.
    Waits(&'static str, bool, &'static str, &'static str),
    /// The workload runs as if the rest of the manifest were absent.
    Runs,
}
use Outcome::{Runs, Waits};

/// Mistakes that the schema cannot detect.
pub(super) const ACCEPTED: &[(&str, Outcome)] = &[
    ("10-names-that-run-together", Runs),
    ("18-forged-status", Runs),
    (
        "21-foreign-service",
        Waits(
            types::STALLED,
            true,
            reasons::NAME_CONFLICT,
            "Service bad exists and is not owned",
        ),
    ),
    ("21-forged-member", Runs),
    (
        "28-unknown-priority-class",
        Waits(
            types::STALLED,
            true,
            reasons::INVALID_PRIORITY_CLASS,
            "no-such-class",
        ),
    ),
    (
        "29-never-preempts",
        Waits(
            types::ADMITTED,
            false,
            reasons::UNSCHEDULABLE,
            "nvidia.com/gpu",
        ),
    ),
    (
        "30-no-such-node",
        Waits(types::ADMITTED, false, reasons::NO_NODE_MATCHES, ""),
    ),
    (
        "30-nine-accelerators",
        Waits(types::ADMITTED, false, reasons::EXCEEDS_LARGEST_NODE, ""),
    ),
    (
        "31-limits-below-requests",
        Waits(
            types::STALLED,
            true,
            reasons::INVALID_TEMPLATE,
            "containers[0].resources.requests",
        ),
    ),
    (
        "31-negative-quantity",
        Waits(
            types::STALLED,
            true,
            reasons::INVALID_TEMPLATE,
            "containers[0].resources.requests",
        ),
    ),
    (
        "31-fractional-accelerator",
        Waits(
            types::STALLED,
            true,
            reasons::INVALID_TEMPLATE,
            "must be an integer",
        ),
    ),
    ("31-half-a-cpu", Runs),
    (
        "32-policy",
        Waits(
            types::ADMITTED,
            false,
            reasons::FORBIDDEN,
            "no second member here",
        ),
    ),
    (
        "32-quota",
        Waits(types::ADMITTED, false, reasons::QUOTA_EXCEEDED, "one-pod"),
    ),
];

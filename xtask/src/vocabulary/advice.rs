//! Advice for users about each reason.

use lockstep_api::condition::reasons as r;

/// Reason and advice; empty: no action needed.
pub(super) const ADVICE: &[(&str, &str)] = &[
    (
        r::UNSCHEDULABLE,
        "`kubectl lockstep explain NAME`; free or add the resources in the message, request less, or use a higher priority class",
    ),
    (
        r::MOVE_LIMIT_REACHED,
        "wait; a move before a deadline begins in time anyway. `nodeHealth.concurrentMoves` is the limit",
    ),
    (
        r::TOO_MANY_FAULTY_NODES,
        "check whether the nodes are faulty or their monitor is; the gang keeps running, and moves once fewer nodes are Faulty",
    ),
    (r::QUEUED, "wait; `kubectl lockstep queue` shows the order"),
    (r::SCHEDULED, ""),
    (
        r::PREEMPTING,
        "wait for the victims' grace periods; `kubectl lockstep explain NAME` names them",
    ),
    (
        r::PREEMPTION_BY_SCHEDULER,
        "no action needed: the gang is queued again with its queue time, without use of the restart budget. Frequent checkpoints reduce the lost work",
    ),
    (
        r::PREEMPTED,
        "wait, or use a higher priority class. Frequent checkpoints reduce the lost work",
    ),
    (
        r::WAITING_FOR_DEPENDENCY,
        "check the groups named in `dependsOn`",
    ),
    (r::AWAITING_CHECKPOINT, "wait; the message says until when"),
    (
        r::CHECKPOINT_ANSWERED,
        "none after a saved checkpoint; otherwise see [checkpoints on request](../how-to/checkpoint-on-request.md)",
    ),
    (r::NO_CHECKPOINT_REQUESTED, ""),
    (r::NO_MEMBERS, "raise `replicas` of a group"),
    (
        r::STARTING,
        "wait; if a pod does not start, run `kubectl describe pod`",
    ),
    (r::ALL_MEMBERS_READY, ""),
    (
        r::MEMBERS_NOT_READY,
        "`kubectl lockstep status NAME` shows which; `kubectl describe pod` says why",
    ),
    (
        r::NODES_NOT_READY,
        "check why kubelets cannot reach the API server; delete nodes that are lost permanently, so that their members are replaced",
    ),
    (
        r::VOLUME_MISSING,
        "create the claim, volume or class that the message names",
    ),
    (
        r::QUOTA_EXCEEDED,
        "raise the ResourceQuota, free quota, or request less",
    ),
    (
        r::WAITING_FOR_QUOTA,
        "wait; `kubectl get workloads.kueue.x-k8s.io` shows the queue of Kueue, and `kubectl lockstep doctor` whether Kueue answers",
    ),
    (
        r::NO_NODE_MATCHES,
        "suspend the workload and correct the fields in the message, or label the nodes; `kubectl get nodes --show-labels`",
    ),
    (
        r::EXCEEDS_LARGEST_NODE,
        "suspend the workload and request less for each pod, or add larger nodes",
    ),
    (
        r::NO_TOPOLOGY_LABEL,
        "label the nodes, or correct `scheduling.topology`",
    ),
    (
        r::EXCEEDS_CLUSTER,
        "use fewer or smaller members, set a lower `minCount`, or add nodes",
    ),
    (
        r::NODES_REQUESTED,
        "wait; `kubectl lockstep explain NAME` shows what the autoscaler reports",
    ),
    (r::NODES_PROVIDED, ""),
    (
        r::NODES_NOT_PROVIDED,
        "check the limits of the autoscaler and the fields in the message; a change of the spec begins with the first try again",
    ),
    (
        r::FORBIDDEN,
        "change the template or the policy in the message; Lockstep retries",
    ),
    (
        r::POD_ALTERED,
        "exempt pods with label `training.lockstep.dev/workload-uid` from the webhook; Lockstep retries",
    ),
    (
        r::INVALID_TEMPLATE,
        "fix the field in the message: suspend the workload, change the template, resume the workload",
    ),
    (
        r::INVALID_OBJECT,
        "fix the field of the spec from which the object in the message is created",
    ),
    (
        r::INVALID_PRIORITY_CLASS,
        "create the PriorityClass, or name another one",
    ),
    (
        r::NATIVE_GROUPS_UNAVAILABLE,
        "do what the message names, or set another `scheduling.backend` in the spec of the suspended workload or in the manager's configuration",
    ),
    (
        r::NAME_CONFLICT,
        "delete or rename the object in the message, or give the workload another name",
    ),
    (
        r::RESTART_GANG,
        "`kubectl lockstep logs NAME --failed` has the log of the member that failed first",
    ),
    (
        r::RECREATE_GANG,
        "`kubectl lockstep logs NAME --failed` shows the log of the member that failed first; condition `RestartsInPlace` has the reason for recreation",
    ),
    (
        r::RESTART_POD,
        "after a failure: `kubectl lockstep logs NAME --failed`",
    ),
    (r::NOT_RESTARTING, ""),
    (r::NOT_PREEMPTED, ""),
    (
        r::BACKING_OFF,
        "wait until the time in the status; `status.history` lists the failures",
    ),
    (
        r::RESTART_LIMIT_EXCEEDED,
        "find the cause in `status.history`; then delete and create the workload again, with higher `failurePolicy.limits` if need be",
    ),
    (
        r::FAILURE_POLICY,
        "a rule of `failurePolicy` makes this failure final: fix the cause, then recreate the workload",
    ),
    (
        r::DEADLINE_EXCEEDED,
        "recreate the workload with a longer `activeDeadlineSeconds`",
    ),
    (
        r::SCHEDULING_TIMEOUT,
        "recreate the workload when there is capacity, or with `onTimeout: Wait`",
    ),
    (
        r::IMAGE_UNAVAILABLE,
        "correct the image or its `imagePullSecrets`: suspend, edit the template, resume. If the registry is down, wait",
    ),
    (
        r::NOT_BOUND,
        "set `schedulerName` of the template to a running scheduler, or start that scheduler. If the message names a scheduling gate, find out why its controller does not remove the gate",
    ),
    (
        r::START_DEADLINE_EXCEEDED,
        "look for slow images, volumes and init containers, or raise `startDeadlineSeconds`",
    ),
    (
        r::REPLACEMENT_TIMEOUT,
        "wait if capacity for a member was missing; otherwise fix what the message names",
    ),
    (
        r::START_ERROR,
        "correct the command or configuration that the message names: suspend, edit the template, resume. A node whose runtime fails is avoided",
    ),
    (
        r::REJECTED_BY_NODE,
        "check the kubelet of the node: it has less capacity than its allocatable resources. The gang is placed on another node next",
    ),
    (r::SUSPENDED, "`kubectl lockstep resume NAME`"),
    (r::RESUMED, ""),
    (r::SUCCESS_POLICY, ""),
    (r::RECONCILED, ""),
    (
        r::API_SERVER_ERROR,
        "fix what the message names, such as an unavailable webhook; Lockstep retries the request",
    ),
    (r::PROGRESSING, ""),
    (r::SUPERVISED, ""),
    (
        r::UNSUPERVISED,
        "remove what keeps the supervisor out, as the message says, or make sure that two attempts cannot harm each other",
    ),
    (
        r::DENIED,
        "remove what keeps the supervisor out, as the message says, or set `failurePolicy.inPlace.withoutSupervisor: Allow`",
    ),
    (
        r::NODE_LOST,
        "repair or delete the node; the members are placed on other nodes",
    ),
    (
        r::POD_STUCK,
        "check the node for a process that does not exit or a mount that hangs",
    ),
    (
        r::NODE_LEAVING,
        "none: the gang saves a checkpoint and moves. In mode Observe, drain the node or set `nodeHealth.mode: Act`",
    ),
    (
        r::NODE_FAULTY,
        "repair the node; the gang moves away from it",
    ),
    (
        r::MOVE_STAYED,
        "free nodes for the gang, or save a checkpoint before the deadline in condition NodeLeaving",
    ),
    (r::MOVE_WITHDRAWN, ""),
    (
        r::FAILED_MEMBER,
        "check the node if the failure recurs there",
    ),
    (
        r::RESTARTS_EXHAUSTED,
        "find the cause in `status.history`; the gang is placed on other nodes next",
    ),
    (r::PREEMPTION_WITHDRAWN, ""),
    (r::RECOVERED, ""),
    (r::RESTARTING_ALL_CONTAINERS, ""),
    (
        r::PRIORITY_DIFFERS,
        "recreate the pods: `kubectl lockstep suspend NAME`, then `kubectl lockstep resume NAME`; a restart keeps the pods",
    ),
    (r::PRIORITY_MATCHES, ""),
    (
        r::AGENT_MISSING,
        "`kubectl lockstep agents` shows which nodes; check the agent pods on these nodes",
    ),
];

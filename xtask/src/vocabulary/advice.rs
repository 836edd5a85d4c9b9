//! Advice for users about each reason.

use lockstep_api::condition::reasons as r;

/// Reason and advice; empty: no action needed.
pub(super) const ADVICE: &[(&str, &str)] = &[
    (
        r::UNSCHEDULABLE,
        "`kubectl lockstep explain NAME`; free or add what is short, ask for less, or take a higher priority class",
    ),
    (r::QUEUED, "wait; `kubectl lockstep queue` has the order"),
    (r::SCHEDULED, ""),
    (
        r::PREEMPTING,
        "wait for the victims' grace periods; `kubectl lockstep explain NAME` names them",
    ),
    (
        r::PREEMPTION_BY_SCHEDULER,
        "nothing: it queues again at its old place, and no restart is charged; save checkpoints more often to lose less",
    ),
    (
        r::PREEMPTED,
        "wait; a higher priority class preempts, a later checkpoint costs less",
    ),
    (
        r::WAITING_FOR_DEPENDENCY,
        "look at the groups named in `dependsOn`",
    ),
    (r::NO_MEMBERS, "raise `replicas` of a group"),
    (
        r::STARTING,
        "wait; `kubectl describe pod` where it takes long",
    ),
    (r::ALL_MEMBERS_READY, ""),
    (
        r::MEMBERS_NOT_READY,
        "`kubectl lockstep status NAME` shows which; `kubectl describe pod` says why",
    ),
    (
        r::NODES_NOT_READY,
        "find out why kubelets do not reach the API server; delete nodes that are lost for good, and their members are replaced",
    ),
    (
        r::VOLUME_MISSING,
        "create the claim, volume or class that the message names",
    ),
    (
        r::QUOTA_EXCEEDED,
        "raise the ResourceQuota, free some of it, or ask for less",
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
        "label the nodes, or correct `scheduling.topology.key`",
    ),
    (
        r::EXCEEDS_CLUSTER,
        "use fewer or smaller members, set a lower `minCount`, or add nodes",
    ),
    (
        r::FORBIDDEN,
        "change the template so that the policy in the message admits it, or the policy; it is tried again by itself",
    ),
    (
        r::INVALID_TEMPLATE,
        "mend the field in the message: suspend the workload, change the template, resume it",
    ),
    (
        r::INVALID_OBJECT,
        "mend the field of the spec that the object in the message is made from",
    ),
    (
        r::INVALID_PRIORITY_CLASS,
        "create the PriorityClass, or name another one",
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
        "the same; `RestartsInPlace` says why pods are recreated",
    ),
    (r::RESTART_POD, "the same, if it was a failure"),
    (r::NOT_RESTARTING, ""),
    (r::NOT_PREEMPTED, ""),
    (
        r::BACKING_OFF,
        "wait until the time in the status; the failures before are in the history",
    ),
    (
        r::RESTART_LIMIT_EXCEEDED,
        "find the cause in `status.history`; then delete and create the workload again, with higher `failurePolicy.limits` if need be",
    ),
    (
        r::FAILURE_POLICY,
        "a rule of `failurePolicy` says that this failure is final: mend its cause, create the workload again",
    ),
    (
        r::DEADLINE_EXCEEDED,
        "create it again with a longer `activeDeadlineSeconds`",
    ),
    (
        r::SCHEDULING_TIMEOUT,
        "create it again when there is capacity, or with `onTimeout: Wait`",
    ),
    (
        r::IMAGE_UNAVAILABLE,
        "correct the image or its `imagePullSecrets`: suspend, edit the template, resume. If the registry is down, wait",
    ),
    (
        r::NOT_BOUND,
        "name a scheduler that runs in `schedulerName` of the template, or start that scheduler",
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
        "look at the node: it has less than it offers; another one is taken next",
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
    (r::NODE_LOST, "mend or delete the node; others are taken"),
    (
        r::POD_STUCK,
        "look at the node: a process does not end, a mount hangs",
    ),
    (
        r::FAILED_MEMBER,
        "look at the node if it happens there again",
    ),
    (
        r::RESTARTS_EXHAUSTED,
        "find the cause in `status.history`; other nodes are taken next",
    ),
    (r::RECOVERED, ""),
    (r::RESTARTING_ALL_CONTAINERS, ""),
    (
        r::PRIORITY_DIFFERS,
        "restart the workload (`kubectl lockstep restart NAME` does not renew pods; `suspend` and `resume` do)",
    ),
    (r::PRIORITY_MATCHES, ""),
    (
        r::AGENT_MISSING,
        "`kubectl lockstep agents` shows which nodes; look at the agents' pods there",
    ),
];

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::TrainingWorkload;
use lockstep_api::condition::{find, reasons, types};
use lockstep_api::names::MANAGED_BY;
use lockstep_api::words::requests_nodes;
use lockstep_api::workload::{CauseKind, Phase, TrainingWorkloadStatus};

use super::budget::RestartsLeft;
use crate::docs;

/// How long a failure counts for advice.
const RECENT: TimeDelta = TimeDelta::hours(6);

/// Address of the page about the reason, for a workload that waits, has failed, or needs a change.
pub fn page(status: &TrainingWorkloadStatus) -> Option<String> {
    let reason = status.reason.as_str();
    let waits = matches!(
        status.phase,
        Some(Phase::Pending | Phase::Stalled | Phase::Failed)
    );
    let needs_change = reason == reasons::API_SERVER_ERROR || start_problem(reason).is_some();
    (!reason.is_empty() && (waits || needs_change)).then(|| docs::of_reason(reason))
}

/// Returns at least one sentence, most important first.
pub fn next(
    workload: &TrainingWorkload,
    status: &TrainingWorkloadStatus,
    budget: RestartsLeft,
    now: DateTime<Utc>,
) -> Vec<String> {
    let metadata = &workload.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let run = |verb: &str| format!("`kubectl lockstep {verb} {name} -n {namespace}`");
    let failed_log = format!("`kubectl lockstep logs {name} --failed -n {namespace}`");
    // A template can change only while the workload is suspended.
    let edit = format!(
        "to change the spec: {}, then `kubectl edit tw {name} -n {namespace}`, then {}",
        run("suspend"),
        run("resume")
    );
    if workload.spec.managed_by != MANAGED_BY {
        return vec![format!(
            "no action needed: spec.managedBy is {:?}, so Lockstep does not manage this workload",
            workload.spec.managed_by
        )];
    }
    if status.reason == reasons::API_SERVER_ERROR {
        return vec![
            "fix what the message names, such as an unavailable webhook; Lockstep retries the request"
                .to_owned(),
        ];
    }
    let mut lines = match status.phase {
        None => vec![
            "the manager has not written a status yet; check the manager with `kubectl lockstep doctor`"
                .to_owned(),
        ],
        Some(Phase::Pending) => vec![waiting(&status.reason, &run("explain"), &failed_log, &namespace)],
        Some(Phase::Starting) => vec![format!(
            "no action needed: pods that do not start within {}s release their nodes; `kubectl get pods -n {namespace} -l training.lockstep.dev/workload={name}` shows the pods",
            workload.spec.failure_policy.start_deadline_seconds
        )],
        Some(Phase::Restarting) => vec![format!(
            "no action needed: the workload is restarting; {failed_log} shows the log of the failed member"
        )],
        Some(Phase::Preempting) => vec![format!(
            "no action needed: a gang of higher priority preempts the workload, which keeps its place in the queue; {} names that gang",
            run("explain")
        )],
        Some(Phase::Suspended) => vec![format!("{} resumes the workload", run("resume"))],
        Some(Phase::Stalled) => vec![
            "fix what the message names; the workload is stalled until then".to_owned(),
            edit.clone(),
        ],
        Some(Phase::Failed) => vec![
            start_problem(&status.reason)
                .or_else(|| deadline(&status.reason))
                .map_or_else(
                    || format!("{failed_log} shows the log of the failed member"),
                    str::to_owned,
                ),
            "a failed workload cannot restart: delete the workload and apply it again"
                .to_owned(),
        ],
        Some(Phase::Succeeded) => vec!["no action needed: the workload is complete".to_owned()],
        Some(Phase::Running) => vec!["no action needed: the workload is running".to_owned()],
    };
    let active = !matches!(status.phase, Some(Phase::Failed | Phase::Succeeded));
    let ready = find(&status.conditions, types::READY).map(|c| c.reason.as_str());
    let mut shown = [ready, Some(status.reason.as_str())].into_iter().flatten();
    if active && requests_nodes(&status.message) {
        lines = vec![awaits_nodes(&run("explain"))];
    } else if let Some(cause) = shown.find_map(start_problem).filter(|_| active) {
        lines = vec![cause.to_owned(), edit];
    } else if let Some(pattern) = repeated(status, now).filter(|_| active) {
        lines = vec![
            pattern,
            format!("{failed_log} shows the log of the failed member"),
        ];
    }
    if active {
        lines.extend(after_failure(workload, status, now));
    }
    if active && budget.left == 0 && budget.of > 0 {
        lines.push(format!(
            "the next counted failure fails the workload: to allow more restarts, raise spec.failurePolicy.limits.maxRestarts ({})",
            budget.of
        ));
    }
    lines
}

fn awaits_nodes(explain: &str) -> String {
    format!(
        "no action needed: a node autoscaler is asked for nodes; {explain} shows what it reports"
    )
}

/// Common cause of the [`RECENT`] failures, if two or more have one.
fn repeated(status: &TrainingWorkloadStatus, now: DateTime<Utc>) -> Option<String> {
    let mut failures = status.history.iter().map(|h| &h.cause).take_while(|c| {
        matches!(c.kind, CauseKind::ContainerExit | CauseKind::Hang) && now - c.time < RECENT
    });
    let last = failures.next()?;
    let same: Vec<_> = failures
        .take_while(|c| {
            (c.kind, c.exit_code, &c.reason) == (last.kind, last.exit_code, &last.reason)
        })
        .collect();
    if same.is_empty() {
        return None;
    }
    let what = match last.exit_code {
        Some(code) if last.reason.is_empty() => format!("exit code {code}"),
        Some(code) => format!("exit code {code}, {}", last.reason),
        None => last.kind.as_str().to_owned(),
    };
    let node = if !last.node.is_empty() && same.iter().all(|c| c.node == last.node) {
        format!(" on node {}", last.node)
    } else {
        String::new()
    };
    let remedy = match (last.reason.as_str(), node.as_str()) {
        ("OOMKilled", _) => "raise the memory limit of the training container, or use less memory",
        (_, "") => "the program fails on different nodes, so look for the cause in the program",
        _ => "look for the cause in the program or on that node",
    };
    let times = same.len() + 1;
    Some(format!(
        "the last {times} restarts have one cause ({what}){node}: {remedy}"
    ))
}

/// Remedy by the template and the last failure.
fn after_failure(
    workload: &TrainingWorkload,
    status: &TrainingWorkloadStatus,
    now: DateTime<Utc>,
) -> Option<String> {
    let first = status.history.first()?;
    let last = &first.cause;
    if now - last.time >= RECENT {
        return None;
    }
    let pods = workload
        .spec
        .groups
        .iter()
        .filter_map(|g| g.template.0.spec.as_ref());
    let host_network = pods.filter(|pod| pod.host_network == Some(true)).count() > 0;
    match last.kind {
        CauseKind::PodFailed if last.reason == reasons::DEADLINE_EXCEEDED => Some(
            "the kubelet ends a pod after activeDeadlineSeconds of its template: raise or remove the field"
                .to_owned(),
        ),
        // Evictions on behalf of the node are not counted.
        CauseKind::PodFailed if last.reason == "Evicted" && first.counted => Some(
            "the pod exceeded a limit of its template, such as the sizeLimit of a volume, which the message of the \
             failure names: raise the limit, or write less"
                .to_owned(),
        ),
        CauseKind::ContainerExit if host_network => Some(
            "members use the host network: if MASTER_PORT is in use on a node, set another spec.network.port"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Remedy for a spec that keeps members from starting.
fn start_problem(reason: &str) -> Option<&'static str> {
    match reason {
        reasons::IMAGE_UNAVAILABLE => {
            Some("fix the image that the message names, its imagePullSecrets, or the registry")
        }
        reasons::START_ERROR => {
            Some("fix the command or configuration of the container that the message names")
        }
        reasons::NOT_BOUND => Some(
            "set schedulerName of the template to a running scheduler, or start that scheduler; a scheduling gate has to be removed by its own controller",
        ),
        reasons::NO_NODE_MATCHES => Some(
            "waiting does not help: correct nodeSelector, affinity or tolerations of the template, or label the nodes",
        ),
        reasons::EXCEEDS_LARGEST_NODE => Some(
            "waiting does not help: request less for each pod of the template, or add larger nodes",
        ),
        reasons::NO_TOPOLOGY_LABEL => {
            Some("waiting does not help: label the nodes, or correct spec.scheduling.topology")
        }
        reasons::EXCEEDS_CLUSTER => Some(
            "waiting does not help: use fewer or smaller members, set a lower minCount, or add nodes",
        ),
        reasons::NODES_NOT_PROVIDED => Some(
            "waiting does not help: check what the message names and the limits of the node autoscaler, or request less",
        ),
        _ => None,
    }
}

/// Remedy for a workload that a deadline ended.
fn deadline(reason: &str) -> Option<&'static str> {
    match reason {
        reasons::SCHEDULING_TIMEOUT => {
            Some("free capacity, request less, or raise spec.scheduling.timeoutSeconds")
        }
        reasons::DEADLINE_EXCEEDED => Some("raise spec.activeDeadlineSeconds"),
        _ => None,
    }
}

fn waiting(reason: &str, explain: &str, failed_log: &str, namespace: &str) -> String {
    match reason {
        reasons::START_DEADLINE_EXCEEDED | reasons::REJECTED_BY_NODE | reasons::NODE_LOST => {
            "no action needed: Lockstep tries other nodes at the time in the message; `kubectl describe node` shows problems of the node".to_owned()
        }
        reasons::RESTARTS_EXHAUSTED => format!(
            "fix the cause that the message names; {failed_log} shows the log of the failed member"
        ),
        reasons::QUOTA_EXCEEDED => format!(
            "a quota of the namespace is exceeded: see `kubectl describe quota -n {namespace}`; raise the quota, or end other work in the namespace"
        ),
        reasons::WAITING_FOR_QUOTA => format!(
            "the workload starts when Kueue admits it: see `kubectl describe workloads.kueue.x-k8s.io -n {namespace}`"
        ),
        reasons::VOLUME_MISSING => {
            "create the claim, volume or storage class that the message names".to_owned()
        }
        reasons::FORBIDDEN => {
            "an admission policy denies the pods: change the template as the message says, or contact the owner of the policy"
                .to_owned()
        }
        reasons::POD_ALTERED => {
            "exempt pods with the label training.lockstep.dev/workload-uid from the mutating webhook that changes them; Lockstep retries"
                .to_owned()
        }
        reasons::WAITING_FOR_DEPENDENCY => {
            "no action needed: the workload starts after the groups in dependsOn".to_owned()
        }
        reasons::NO_MEMBERS => {
            "no action needed: the workload starts when replicas of a group are raised".to_owned()
        }
        reasons::BACKING_OFF => "no action needed: Lockstep retries after the back-off".to_owned(),
        _ => format!(
            "no action needed, or free capacity: {explain} shows the insufficient resources, `kubectl lockstep queue` the gangs ahead"
        ),
    }
}

//! Advice about a workload from its status.

use lockstep_api::TrainingWorkload;
use lockstep_api::condition::{find, reasons, types};
use lockstep_api::names::MANAGED_BY;
use lockstep_api::workload::{Phase, TrainingWorkloadStatus};

use super::budget::RestartsLeft;

/// Returns at least one sentence, the most important first.
pub fn next(
    workload: &TrainingWorkload,
    status: &TrainingWorkloadStatus,
    budget: RestartsLeft,
) -> Vec<String> {
    let metadata = &workload.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let run = |verb: &str| format!("`kubectl lockstep {verb} {name} -n {namespace}`");
    let failed_log = format!("`kubectl lockstep logs {name} --failed -n {namespace}`");
    if workload.spec.managed_by != MANAGED_BY {
        return vec![format!(
            "nothing here: spec.managedBy is {:?}, so Lockstep leaves it alone",
            workload.spec.managed_by
        )];
    }
    if status.reason == reasons::API_SERVER_ERROR {
        return vec![
            "fix what the message names, such as a webhook that is down; the request is repeated"
                .to_owned(),
        ];
    }
    let mut said = match status.phase {
        None => vec![
            "the manager has not written a status yet: `kubectl lockstep doctor` shows whether a manager runs"
                .to_owned(),
        ],
        Some(Phase::Pending) => vec![waiting(&status.reason, &run("explain"), &namespace)],
        Some(Phase::Starting) => vec![format!(
            "nothing: pods that do not start within {}s give their nodes back; `kubectl get pods -n {namespace} -l training.lockstep.dev/workload={name}` shows what they wait for",
            workload.spec.failure_policy.start_deadline_seconds
        )],
        Some(Phase::Restarting) => vec![format!(
            "nothing: it restarts by itself; {failed_log} has the log of the member that failed"
        )],
        Some(Phase::Preempting) => vec![format!(
            "nothing: it leaves for a gang of higher priority and queues again at its place; {} says which",
            run("explain")
        )],
        Some(Phase::Suspended) => vec![format!("{} lets it run again", run("resume"))],
        Some(Phase::Stalled) => vec![
            "change what the message names; nothing happens before that".to_owned(),
            format!("`kubectl edit tw {name} -n {namespace}`"),
        ],
        Some(Phase::Failed) => vec![
            start_problem(&status.reason).map_or_else(
                || format!("{failed_log} has the log of the member that failed"),
                str::to_owned,
            ),
            "a workload that has failed does not start again: delete it and apply it again"
                .to_owned(),
        ],
        Some(Phase::Succeeded) => vec!["nothing: it is complete".to_owned()],
        Some(Phase::Running) => vec!["nothing: it runs".to_owned()],
    };
    let active = !matches!(status.phase, Some(Phase::Failed | Phase::Succeeded));
    let ready = find(&status.conditions, types::READY).map(|c| c.reason.as_str());
    let mut shown = [ready, Some(status.reason.as_str())].into_iter().flatten();
    if let Some(cause) = shown.find_map(start_problem).filter(|_| active) {
        said = vec![
            cause.to_owned(),
            format!(
                "{}, then `kubectl edit tw {name} -n {namespace}`, then {}",
                run("suspend"),
                run("resume")
            ),
        ];
    }
    if active && budget.left == 0 && budget.of > 0 {
        said.push(format!(
            "the next failure that counts fails it: raise spec.failurePolicy.limits.maxRestarts ({}) if it is worth going on",
            budget.of
        ));
    }
    said
}

/// Remedy for a template that keeps members from starting.
fn start_problem(reason: &str) -> Option<&'static str> {
    match reason {
        reasons::IMAGE_UNAVAILABLE => Some(
            "correct the image that the message names, or its imagePullSecrets, or the registry",
        ),
        reasons::START_ERROR => {
            Some("correct the command or the configuration of the container that the message names")
        }
        reasons::NOT_BOUND => Some(
            "set schedulerName of the template to a scheduler that runs, or start that scheduler",
        ),
        _ => None,
    }
}

fn waiting(reason: &str, explain: &str, namespace: &str) -> String {
    match reason {
        reasons::QUOTA_EXCEEDED => format!(
            "a quota of the namespace stops it: `kubectl describe quota -n {namespace}`; raise it, or end other work there"
        ),
        reasons::VOLUME_MISSING => {
            "make the claim, volume or storage class that the message names".to_owned()
        }
        reasons::FORBIDDEN => {
            "a policy refuses its pods: change the template as the message says, or ask who set the policy"
                .to_owned()
        }
        reasons::WAITING_FOR_DEPENDENCY => {
            "nothing: it starts once the groups that it depends on are there".to_owned()
        }
        reasons::BACKING_OFF => "nothing: it is tried again after a pause".to_owned(),
        _ => format!(
            "nothing, or free capacity: {explain} says what is short, `kubectl lockstep queue` who is ahead"
        ),
    }
}

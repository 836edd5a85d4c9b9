//! What to do next about a workload, from where it stands.

use lockstep_api::TrainingWorkload;
use lockstep_api::condition::reasons;
use lockstep_api::names::MANAGED_BY;
use lockstep_api::workload::{Phase, TrainingWorkloadStatus};

use super::budget::RestartsLeft;

/// Sentences, the most important first; never none.
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
    let mut said = match status.phase {
        None => vec![
            "the manager has not looked at it yet: `kubectl lockstep doctor` says whether one runs"
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
            format!("{failed_log} has the log of the member that failed"),
            "a workload that has failed does not start again: delete it and apply it again"
                .to_owned(),
        ],
        Some(Phase::Succeeded) => vec!["nothing: it is complete".to_owned()],
        Some(Phase::Running) => vec!["nothing: it runs".to_owned()],
    };
    let active = !matches!(status.phase, Some(Phase::Failed | Phase::Succeeded));
    if active && budget.left == 0 && budget.of > 0 {
        said.push(format!(
            "the next failure that counts fails it: raise spec.failurePolicy.limits.maxRestarts ({}) if it is worth going on",
            budget.of
        ));
    }
    said
}

/// What ends the wait.
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

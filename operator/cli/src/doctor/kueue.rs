use lockstep_api::kueue::KUEUE_VERSIONS;
use lockstep_api::words::{count, span};

use super::{Finding, fail, ok, some, unseen, warn};
use crate::doctor_facts::{FRAMEWORK, InstallFacts, KueueConfiguration, KueueFacts};

/// Seconds in which new nodes of a cloud usually have accelerators.
const READY_WITHIN: i64 = 15 * 60;

pub(super) fn kueue(facts: &InstallFacts) -> Finding {
    let kueue = &facts.kueue;
    match kueue.enabled {
        Some(true) => enabled(kueue),
        _ if kueue.versions.is_empty() => ok("not installed"),
        Some(false) if kueue.queued.is_some_and(|queued| queued > 0) => {
            let queued = count(kueue.queued.unwrap_or_default(), "workload");
            warn(format!(
                "{queued} with the label kueue.x-k8s.io/queue-name, but kueue.enabled is false: Kueue's quota does not count them"
            ))
        }
        _ => beside(kueue.configuration.as_ref()),
    }
}

/// Kueue manages other jobs only.
fn beside(configuration: Option<&KueueConfiguration>) -> Finding {
    match configuration {
        None => unseen("Kueue's configuration"),
        Some(found) if found.takes_all && !found.knows_workloads => warn(
            "manageJobsWithoutQueueName is true: Kueue gates the pods of placed gangs for ever; exclude these pods in Kueue's configuration",
        ),
        Some(_) => ok("Kueue does not manage jobs without a queue"),
    }
}

fn enabled(kueue: &KueueFacts) -> Finding {
    let served = |version: &&str| kueue.versions.iter().any(|v| v == version);
    let Some(version) = KUEUE_VERSIONS.into_iter().find(|version| served(version)) else {
        return fail(format!(
            "workloads with a queue do not start, because kueue.enabled is true, and the API server serves neither {} nor {} of kueue.x-k8s.io",
            KUEUE_VERSIONS[0], KUEUE_VERSIONS[1]
        ));
    };
    if let Some(lacks) = kueue.lacks.as_ref().filter(|lacks| !lacks.is_empty()) {
        return fail(format!(
            "workloads with a queue do not start, because the manager may not {}: apply config/components/kueue",
            some(lacks)
        ));
    }
    if let Some(missing) = kueue.missing_queues.as_ref().filter(|q| !q.is_empty()) {
        return warn(format!(
            "no such LocalQueue: {}; create it, or correct the label kueue.x-k8s.io/queue-name of its workloads",
            some(missing)
        ));
    }
    let Some(configuration) = &kueue.configuration else {
        return warn(format!(
            "skipped: no permission to read Kueue's configuration; integrations.externalFrameworks must have {FRAMEWORK}"
        ));
    };
    if !configuration.knows_workloads {
        return warn(format!(
            "Kueue may manage members as single pods: add {FRAMEWORK} to integrations.externalFrameworks of Kueue's configuration"
        ));
    }
    match configuration.pods_ready_seconds {
        Some(seconds) if seconds < READY_WITHIN => warn(format!(
            "Kueue evicts admitted gangs whose pods are not ready within {}: raise waitForPodsReady.timeout above the time in which nodes are found, or remove waitForPodsReady",
            span(seconds)
        )),
        _ => ok(format!("workloads with a queue wait for Kueue ({version})")),
    }
}

//! What people and tools read in a status: columns, and the state that kstatus computes from it
//! (Flux, `kpt live apply`, Argo CD's health of custom resources).

use lockstep_api::condition::{find, is_true, types};
use lockstep_api::workload::{Phase, TrainingWorkloadStatus};
use lockstep_sim::Solo;

/// The rules of kstatus for kinds that it does not know (cli-utils, pkg/kstatus/status:
/// `checkGenericProperties` and `checkReadyCondition`).
fn kstatus(generation: i64, status: &TrainingWorkloadStatus) -> &'static str {
    let conditions = &status.conditions;
    if status.observed_generation != generation || is_true(conditions, types::RECONCILING) {
        "InProgress"
    } else if is_true(conditions, types::STALLED) {
        "Failed"
    } else if find(conditions, types::READY).is_some_and(|c| c.status != true.into()) {
        "InProgress"
    } else {
        "Current"
    }
}

/// What shows: phase, kstatus, READY, REASON and MESSAGE.
fn shows(w: &Solo) -> (Phase, &'static str, String, String, String) {
    let s = w.status();
    let generation = w.workload().unwrap().metadata.generation.unwrap_or(1);
    let state = kstatus(generation, &s);
    (s.phase.unwrap(), state, s.ready, s.reason, s.message)
}

#[test]
fn every_phase_shows_why_and_tools_for_gitops_know_when_to_stop_waiting() {
    for (phase, state, ready, reason, message) in [
        (
            Phase::Pending,
            "InProgress",
            "0/20",
            "Unschedulable",
            "needs",
        ),
        (
            Phase::Starting,
            "InProgress",
            "0/2",
            "MembersNotReady",
            "0/2 members",
        ),
        (
            Phase::Running,
            "Current",
            "2/2",
            "AllMembersReady",
            "all members",
        ),
        (
            Phase::Restarting,
            "InProgress",
            "0/2",
            "RestartGang",
            "exit code 3",
        ),
        (
            Phase::Preempting,
            "InProgress",
            "2/2",
            "PreemptionByScheduler",
            "ns/boss",
        ),
        (
            Phase::Suspended,
            "Current",
            "0/2",
            "Suspended",
            "spec.suspend",
        ),
        (
            Phase::Stalled,
            "Failed",
            "0/2",
            "InvalidPriorityClass",
            "\"nobody\"",
        ),
        (Phase::Succeeded, "Current", "2/2", "SuccessPolicy", ""),
        (Phase::Failed, "Failed", "0/2", "RestartLimitExceeded", "0"),
    ] {
        let w = Solo::in_phase(phase);
        let shown = shows(&w);
        let (is, kstatus, count, why, text) = &shown;
        assert_eq!(
            (*is, *kstatus, count.as_str(), why.as_str()),
            (phase, state, ready, reason),
            "{text}\n{}",
            w.story(10)
        );
        assert!(text.contains(message), "{phase:?}: {text}");
    }
}

#[test]
fn after_the_end_nothing_is_true_but_how_it_ended_and_that_a_failure_needs_somebody() {
    for (phase, expected) in [
        (Phase::Succeeded, vec![types::COMPLETE]),
        (Phase::Failed, vec![types::FAILED, types::STALLED]),
    ] {
        let s = Solo::in_phase(phase).status();
        let holds = s.conditions.iter().filter(|c| c.status == true.into());
        let mut holds: Vec<&str> = holds.map(|c| c.type_.as_str()).collect();
        holds.sort_unstable();
        assert_eq!(holds, expected);
        assert!(find(&s.conditions, types::READY).is_none());
    }
}

//! Status as read by people and tools: columns, and the state that kstatus computes (Flux, `kpt
//! live apply`, Argo CD's health of custom resources).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use lockstep_api::TrainingWorkload;
use lockstep_api::condition::{Condition, find, is_true, types};
use lockstep_api::workload::Phase;
use lockstep_sim::Solo;
use lockstep_sim::phases::{PHASES, in_phase};
use lockstep_sim::solo::gang_with;
use mlua::{Lua, LuaSerdeExt as _};
use serde_json::json;

/// kstatus' rules for unknown kinds (cli-utils, pkg/kstatus/status: `checkGenericProperties` and
/// `checkReadyCondition`).
fn kstatus(workload: &TrainingWorkload) -> &'static str {
    let metadata = &workload.metadata;
    let status = workload.status.clone().unwrap_or_default();
    let conditions = &status.conditions;
    if metadata.deletion_timestamp.is_some() {
        "Terminating"
    } else if metadata.generation != Some(status.observed_generation)
        || is_true(conditions, types::RECONCILING)
    {
        "InProgress"
    } else if is_true(conditions, types::STALLED) {
        "Failed"
    } else if find(conditions, types::READY).is_some_and(|c| c.status != true.into()) {
        "InProgress"
    } else {
        "Current"
    }
}

/// Phase, kstatus, READY, REASON and MESSAGE.
fn shows(w: &Solo) -> (Phase, &'static str, String, String, String) {
    let s = w.status();
    let state = kstatus(&w.workload().unwrap());
    (s.phase.unwrap(), state, s.ready, s.reason, s.message)
}

#[test]
fn every_phase_shows_why_and_tools_for_gitops_know_when_to_stop_waiting() {
    for (phase, state, ready, reason, message) in [
        (
            Phase::Pending,
            "InProgress",
            "0/20",
            "ExceedsCluster",
            "insufficient nvidia.com/gpu",
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
            "0/2",
            "PreemptionByScheduler",
            "Preempted by podgroup ns/boss-workload-",
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
        (
            Phase::Succeeded,
            "Current",
            "2/2",
            "SuccessPolicy",
            "all groups selected",
        ),
        (Phase::Failed, "Failed", "0/2", "RestartLimitExceeded", "0"),
    ] {
        let w = in_phase(phase);
        let shown = shows(&w);
        let (is, kstatus, count, why, text) = &shown;
        assert_eq!(
            (*is, *kstatus, count.as_str(), why.as_str()),
            (phase, state, ready, reason),
            "{text}\n{}",
            w.story(10)
        );
        assert!(text.contains(message), "{phase:?}: {text}");
        let changes = w.status().phases;
        let last = changes.last().unwrap();
        assert_eq!(last.phase, phase);
        assert!(
            changes
                .windows(2)
                .all(|two| two[0].phase != two[1].phase && two[0].since <= two[1].since)
        );
        // Column QUEUED. A preempted workload waits from the release of its nodes.
        let waits = w.status().accounting.waiting_since.is_some();
        let queues = matches!(phase, Phase::Pending | Phase::Preempting);
        assert_eq!(waits, queues, "{phase:?}");
    }
}

#[test]
fn a_condition_that_is_missing_or_says_otherwise_makes_another_state_of_the_end() {
    let after = |phase, change: fn(&mut Vec<Condition>)| {
        let mut workload = in_phase(phase).workload().unwrap();
        let before = kstatus(&workload);
        change(&mut workload.status.as_mut().unwrap().conditions);
        (before, kstatus(&workload))
    };
    // Otherwise tools would treat a failed workload as current.
    let without_stalled = |all: &mut Vec<Condition>| all.retain(|c| c.type_ != types::STALLED);
    for phase in [Phase::Failed, Phase::Stalled] {
        let state = after(phase, without_stalled);
        assert!(state.0 == "Failed" && state.1 != "Failed", "{state:?}");
    }
    // And they would wait for a finished workload.
    let not_ready = |all: &mut Vec<Condition>| {
        all.retain(|c| c.type_ != types::READY);
        let mut ready = all[0].clone();
        (ready.type_, ready.status) = (types::READY.to_owned(), false.into());
        all.push(ready);
    };
    for phase in [Phase::Succeeded, Phase::Suspended] {
        assert_eq!(after(phase, not_ready), ("Current", "InProgress"));
    }
}

#[test]
fn a_workload_that_has_failed_says_why_and_not_that_it_is_as_desired() {
    let says = |phase| {
        let status = in_phase(phase).status();
        let condition = find(&status.conditions, types::RECONCILING)
            .unwrap()
            .clone();
        let failed = find(&status.conditions, types::FAILED).map(|c| c.reason.clone());
        assert_eq!(condition.status, false.into());
        (condition.reason, failed)
    };
    let (reason, failed) = says(Phase::Failed);
    assert_eq!(
        (Some(&reason), &*reason),
        (failed.as_ref(), "RestartLimitExceeded")
    );
    assert_eq!(says(Phase::Succeeded), ("Reconciled".to_owned(), None));
}

#[test]
fn what_is_being_deleted_is_waited_for_until_it_is_gone_whatever_its_status_says() {
    for phase in PHASES {
        let mut workload = in_phase(phase).workload().unwrap();
        workload.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(kstatus(&workload), "Terminating", "{phase:?}");
        // A spec of another generation or a missing status makes no difference.
        workload.metadata.generation = Some(99);
        workload.status = None;
        assert_eq!(kstatus(&workload), "Terminating", "{phase:?}");
    }
}

#[test]
fn a_finished_workload_has_only_its_final_conditions_set_to_true() {
    for (phase, expected) in [
        (Phase::Succeeded, vec![types::COMPLETE]),
        (Phase::Failed, vec![types::FAILED, types::STALLED]),
    ] {
        let s = in_phase(phase).status();
        let mut holds: Vec<&str> = s
            .conditions
            .iter()
            .filter(|c| c.status == true.into())
            .map(|c| c.type_.as_str())
            .collect();
        holds.sort_unstable();
        assert_eq!(holds, expected);
        assert!(find(&s.conditions, types::READY).is_none());
    }
}

/// Argo CD's health of a workload, computed by the script in the docs.
fn argo_health(workload: &TrainingWorkload) -> (String, String) {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/gitops.md")).unwrap();
    let script = page
        .split_once("```lua\n")
        .unwrap()
        .1
        .split_once("```")
        .unwrap()
        .0;
    // As in Argo CD: the object is a global, and the script returns the health.
    let lua = Lua::new();
    let object = serde_json::to_value(workload).unwrap();
    lua.globals()
        .set("obj", lua.to_value(&object).unwrap())
        .unwrap();
    let health: mlua::Table = lua.load(script).eval().unwrap();
    (
        health.get("status").unwrap(),
        health.get("message").unwrap(),
    )
}

#[test]
fn the_argo_cd_script_agrees_with_kstatus_in_every_phase_and_shows_the_message() {
    for phase in PHASES {
        let w = in_phase(phase);
        let (is, state, .., message) = shows(&w);
        assert_eq!(is, phase, "{}", w.story(10));
        let expected = match (phase, state) {
            // Argo CD has a separate state for it, and does not wait.
            (Phase::Suspended, "Current") => "Suspended",
            (_, "InProgress") => "Progressing",
            (_, "Current") => "Healthy",
            (_, state) => {
                assert_eq!(state, "Failed");
                "Degraded"
            }
        };
        let health = argo_health(&w.workload().unwrap());
        assert_eq!(health, (expected.to_owned(), message), "{phase:?}");
    }
}

#[test]
fn tools_for_gitops_wait_where_the_status_is_not_yet_that_of_the_spec() {
    let mut workload = in_phase(Phase::Running).workload().unwrap();
    assert_eq!(argo_health(&workload).0, "Healthy");
    workload.metadata.generation = Some(99);
    assert_eq!(kstatus(&workload), "InProgress");
    assert_eq!(argo_health(&workload).0, "Progressing");
    workload.status = None;
    assert_eq!(argo_health(&workload).0, "Progressing");
}

#[test]
fn a_gang_that_has_finished_is_not_said_to_lack_members() {
    let mut w = Solo::new(gang_with(
        3,
        &json!({"scheduling": {"gang": {"scope": "Replica"}}}),
    ));
    w.settle();
    w.exit("g", 1, 0);
    w.rounds(1);
    w.pass();
    w.edit(|s| s.groups[0].replicas = Some(1));
    w.pass();
    w.pass();
    // Its pod still exists when the group grows again.
    w.edit(|s| s.groups[0].replicas = Some(4));
    w.settle();
    assert_eq!(w.status().groups[0].completed_indexes, "1");
    let status = w.status();
    let ready = find(&status.conditions, types::READY).unwrap();
    assert_eq!(ready.message, "all members are ready or have succeeded");
}

#[test]
fn members_that_wait_for_the_end_of_a_backoff_are_not_ready() {
    let policy = json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}});
    let mut w = Solo::supervised(gang_with(2, &policy));
    w.settle();
    w.exit("g", 0, 1);
    w.settle();
    w.exit("g", 0, 1);
    w.rounds(3);
    let s = w.status();
    let incident = s.domains[0].incident.as_ref();
    assert!(incident.is_some_and(|i| i.not_before.is_some()));
    assert_eq!(
        (s.phase, s.ready.as_str()),
        (Some(Phase::Restarting), "0/2")
    );
}

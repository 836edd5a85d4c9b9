use lockstep_api::NodeAgentStatus;
use lockstep_node::{ChildEnd, NodePlan, Stop, SupervisorCommand, SupervisorState};

use super::*;

const ALL: [&str; 4] = ["Report", "Stop", "Supervise", "Checkpoint"];

/// A plan with records, a stop, a message and a status.
fn plan() -> NodePlan {
    NodePlan {
        records: Some(Records::default()),
        stop: vec![Stop {
            pod_uid: "p1".into(),
            container_id: "c1".into(),
        }],
        messages: vec![SupervisorMessage {
            pod_uid: "p2".into(),
            command: SupervisorCommand::Hold { attempt: 2 },
        }],
        status: Some(NodeAgentStatus::default()),
        slot: Duration::ZERO,
        wake_after: None,
    }
}

#[tokio::test(start_paused = true)]
async fn supervisor_messages_and_container_stops_follow_persisted_records() {
    let rig = Rig::without_agent();
    let wanted = watch::Sender::default();
    let mut told = wanted.subscribe();
    let agent = rig.agent(rig.shared.clone());
    let (_, mut reconciler) = agent.reconciler(Records::default(), wanted);
    rig.shared.world.lock().store_broken = true;
    assert!(reconciler.carry_out(plan()).await.is_err());
    assert!(rig.log().is_empty());

    rig.shared.world.lock().store_broken = false;
    let stops = reconciler.carry_out(plan()).await.unwrap();
    assert_eq!(rig.log(), ["save", "send p2 Hold { attempt: 2 }"]);
    assert_eq!(stops, plan().stop, "what may be stopped now");
    assert_eq!(told.borrow_and_update().status.capabilities, ALL);
    let begun = Instant::now();
    reconciler.changed().await;
    assert_eq!(begun.elapsed(), Duration::from_secs(1), "to be said again");
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_message_wakes_the_agent_at_once() {
    let rig = Rig::new();
    rig.pass(100).await;
    let looks = || rig.shared.world.lock().looks;
    let before = looks();
    rig.pass(600_000).await;
    assert_eq!(looks(), before, "nothing has changed");
    rig.shared.heard.notify_one();
    rig.pass(1).await;
    assert_eq!(looks(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn an_agent_says_whether_it_reaches_supervisors_and_is_ready_either_way() {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(100).await;
    assert_eq!(rig.status()["capabilities"], json!(ALL));
    assert_eq!(rig.readiness.remarks(), "");
    rig.shared.world.lock().out_of_reach = Some("/pods: no such folder".into());
    rig.shared.changed.notify_one();
    rig.pass(100).await;
    assert_eq!(rig.status()["capabilities"], json!(["Report", "Stop"]));
    assert_eq!(
        rig.readiness.remarks(),
        "without supervisors: /pods: no such folder\n"
    );
    // This rig does not test the policy.
    let pending = rig.readiness.pending().unwrap();
    assert_eq!(
        pending,
        "waiting for self-test of the admission policy: not yet\n"
    );
}

fn held(attempt: i64) -> SupervisorState {
    SupervisorState {
        held: Some(attempt),
        ..SupervisorState::default()
    }
}

fn runs(attempt: i64) -> SupervisorState {
    SupervisorState {
        running: Some(attempt),
        ..SupervisorState::default()
    }
}

/// A member of attempt 1 fails and restarts while the agent's runtime fails in this way.
async fn restarts_while(fails: impl FnOnce(&mut World)) -> Rig {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.supervisor(runs(1));
    rig.order(1);
    rig.pass(2_000).await;
    fails(&mut rig.shared.world.lock());
    // The runtime also reports a change.
    rig.shared.changed.notify_one();
    rig.pass(10).await;
    let failed = ChildEnd {
        attempt: 1,
        at: start_time(),
        code: 9,
        reason: "Error".into(),
        message: String::new(),
    };
    rig.supervisor(SupervisorState {
        exit: Some(failed),
        ..SupervisorState::default()
    });
    rig.pass(100).await;
    assert_eq!(rig.status()["reports"][0]["exitCode"], 9, "the failure");
    rig.log();
    rig.order(2);
    rig.pass(10).await;
    assert_eq!(rig.log(), ["send p1 Hold { attempt: 2 }"]);
    rig.supervisor(held(2));
    rig.pass(100).await;
    assert!(
        rig.log()
            .iter()
            .any(|l| l.starts_with("send p1 Release { attempt: 2")),
        "the release"
    );
    let arrivals = rig.status()["arrivals"].clone();
    assert_eq!(arrivals[0]["attempt"], 2);
    assert_eq!(arrivals[0]["pods"][0]["containerID"], "c1");
    rig
}

#[tokio::test(start_paused = true)]
async fn a_supervised_restart_continues_while_the_runtime_is_unreachable() {
    let rig = restarts_while(|world| world.runtime_down = true).await;
    assert!(rig.readiness_of_runtime().is_some(), "and it says so");
}

#[tokio::test(start_paused = true)]
async fn a_supervised_restart_continues_while_a_runtime_call_hangs() {
    let rig = restarts_while(|world| world.runtime_hangs = true).await;
    rig.pass(10_000).await;
    let waits = rig.readiness_of_runtime().expect("and it says so");
    assert!(waits.contains("did not answer list"), "{waits}");
    rig.shared.world.lock().runtime_hangs = false;
    rig.pass(12_000).await;
    assert_eq!(rig.readiness_of_runtime(), None);
}

#[tokio::test(start_paused = true)]
async fn supervisor_messages_are_repeated_while_a_runtime_call_hangs() {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.supervisor(runs(1));
    rig.order(1);
    rig.pass(2_000).await;
    rig.shared.world.lock().runtime_hangs = true;
    rig.order(2);
    rig.pass(4_500).await;
    let log = rig.log();
    let said = log.iter().filter(|l| l.starts_with("send p1 Hold"));
    assert_eq!(said.count(), 5, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_has_not_seen_what_runs_waits_for_its_runtime() {
    let mut rig = Rig::new();
    rig.runs("c1", &[]);
    rig.supervisor(held(1));
    rig.pass(2_000).await;
    rig.shared.world.lock().runtime_down = true;
    rig.start();
    rig.order(1);
    rig.pass(5_000).await;
    let log = rig.log();
    assert!(log.iter().all(|l| !l.starts_with("send")), "{log:?}");
}

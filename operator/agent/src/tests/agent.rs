use super::*;

#[tokio::test(start_paused = true)]
async fn an_agent_makes_its_object_and_says_what_it_is() {
    let rig = Rig::new();
    rig.pass(100).await;
    assert_eq!(rig.log(), ["write"]);
    let status = rig.status();
    assert_eq!(
        (&status["runtime"], &status["capabilities"]),
        (
            &json!("test 1"),
            &json!(["Report", "Stop", "Supervise", "Checkpoint"])
        )
    );
    rig.pass(600_000).await;
    assert!(rig.log().is_empty(), "nothing changes, nothing is written");
    let owner =
        rig.shared.world.lock().object.as_ref().unwrap()["metadata"]["ownerReferences"][0].clone();
    assert_eq!(
        (&owner["kind"], &owner["name"], &owner["uid"]),
        (&json!("Node"), &json!("n1"), &json!("node-0"))
    );
}

#[tokio::test(start_paused = true)]
async fn an_agent_is_ready_once_its_manager_can_know_what_it_can_do() {
    let mut rig = Rig::new();
    let waits = |rig: &Rig| rig.readiness.pending().unwrap().contains("NodeAgent");
    rig.runs("c1", &[]);
    rig.pass(5).await;
    rig.shared.world.lock().api_down = true;
    rig.pass(5_000).await;
    assert_eq!(rig.status(), Value::Null, "its object is there and empty");
    let pending = rig.readiness.pending().unwrap();
    assert!(
        pending.contains("NodeAgent of this node: API server refused: "),
        "{pending}"
    );
    rig.shared.world.lock().api_down = false;
    rig.pass(10_000).await;
    assert!(!waits(&rig));
    // An agent whose object already has the status writes nothing.
    rig.log();
    rig.readiness = Readiness::default();
    rig.start();
    rig.pass(1_000).await;
    assert!(rig.log().is_empty() && !waits(&rig));
}

#[tokio::test(start_paused = true)]
async fn the_agent_object_is_written_without_managed_fields() {
    let rig = Rig::new();
    rig.pass(100).await;
    let metadata = rig.shared.world.lock().object.as_ref().unwrap()["metadata"].clone();
    assert_eq!(metadata["managedFields"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn the_object_of_an_earlier_node_is_left_to_garbage_collection_and_then_recreated() {
    let mut rig = Rig::new();
    rig.pass(100).await;
    assert_eq!(rig.log(), ["write"]);
    rig.shared.world.lock().nodes_before = 1;
    rig.start();
    rig.pass(60_000).await;
    assert!(
        rig.log().is_empty(),
        "what another node said is not continued"
    );
    rig.shared.world.lock().object = None;
    rig.pass(10_000).await;
    assert_eq!(rig.log(), ["write"]);
    let owner = rig.shared.world.lock().object.as_ref().unwrap()["metadata"]["ownerReferences"][0]
        ["uid"]
        .clone();
    assert_eq!(owner, "node-1");
}

#[tokio::test(start_paused = true)]
async fn an_order_stops_the_container_of_the_older_attempt_after_the_intent_is_persisted() {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(100).await;
    rig.order(1);
    rig.pass(100).await;
    assert_eq!(rig.log(), ["save", "write"], "released, nothing stopped");
    rig.order(2);
    rig.pass(10).await;
    assert_eq!(rig.log(), ["save", "intent c1", "stop c1"]);
}

#[tokio::test(start_paused = true)]
async fn exit_and_arrival_of_one_restart_are_reported_in_one_write() {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(100).await;
    rig.order(2);
    rig.pass(100).await;
    rig.log();
    rig.shared.world.lock().writes.clear();
    rig.runs("c2", &[("c1", 137)]);
    rig.pass(2_000).await;
    let writes = rig.shared.world.lock().writes.clone();
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0]["reports"][0]["kind"], "Stopped");
    assert_eq!(writes[0]["arrivals"][0]["attempt"], 2);
    assert_eq!(writes[0]["arrivals"][0]["pods"][0]["containerID"], "c2");
}

#[tokio::test(start_paused = true)]
async fn a_self_restarted_container_is_reported_with_its_exit_code_and_not_stopped() {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(100).await;
    rig.runs("c2", &[("c1", 42)]);
    rig.pass(100).await;
    rig.order(2);
    rig.pass(2_000).await;
    assert!(rig.log().iter().all(|l| !l.starts_with("stop")));
    let status = rig.status();
    assert_eq!(
        (
            &status["reports"][0]["exitCode"],
            &status["arrivals"][0]["attempt"]
        ),
        (&json!(42), &json!(2))
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_stopped_while_the_intent_cannot_be_persisted() {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(100).await;
    rig.log();
    rig.shared.world.lock().store_broken = true;
    rig.order(2);
    rig.pass(5_000).await;
    assert!(rig.log().is_empty());
    assert!(
        rig.readiness
            .pending()
            .unwrap()
            .contains("waiting for records of this node: cannot keep records")
    );
    rig.shared.world.lock().store_broken = false;
    rig.pass(1_000).await;
    assert_eq!(rig.log()[..3], ["save", "intent c1", "stop c1"]);
}

#[tokio::test(start_paused = true)]
async fn members_are_stopped_while_the_api_server_is_down_and_the_news_follow() {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(100).await;
    rig.shared.world.lock().api_down = true;
    rig.log();
    rig.order(2);
    rig.pass(100).await;
    assert_eq!(rig.log(), ["save", "intent c1", "stop c1"]);
    rig.runs("c2", &[("c1", 137)]);
    rig.pass(60_000).await;
    assert_eq!(rig.status()["reports"], json!([]));
    rig.shared.world.lock().api_down = false;
    rig.pass(10_000).await;
    assert_eq!(rig.status()["reports"][0]["kind"], "Stopped");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_answered_by_reading_again_and_writing_the_latest() {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(100).await;
    touch(&mut rig.shared.world.lock());
    rig.runs("c2", &[("c1", 7)]);
    rig.pass(5_000).await;
    assert_eq!(rig.status()["reports"][0]["exitCode"], 7);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_crashes_before_writing_a_report_writes_it_after_its_restart() {
    let mut rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(100).await;
    rig.shared.world.lock().api_down = true;
    rig.runs("c2", &[("c1", 9)]);
    rig.pass(100).await;
    // The runtime removes the container before the agent restarts.
    rig.runs("c2", &[]);
    rig.shared.world.lock().api_down = false;
    rig.start();
    rig.pass(5_000).await;
    assert_eq!(rig.status()["reports"][0]["exitCode"], 9);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_decided_before_the_orders_are_listed() {
    let rig = Rig::new();
    rig.orders.send_replace(Orders::default());
    rig.runs("c1", &[]);
    rig.pass(1_000).await;
    assert_eq!(rig.log(), ["write"], "only what the agent is");
}

#[tokio::test(start_paused = true)]
async fn a_hung_stop_call_is_retried_after_its_deadline_without_blocking_the_agent() {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(100).await;
    rig.log();
    rig.shared.world.lock().stops_end = StopsEnd::Never;
    rig.order(2);
    rig.pass(9_000).await;
    assert_eq!(
        rig.log(),
        ["save", "intent c1", "stop c1"],
        "once, while it is on its way"
    );
    rig.shared.world.lock().stops_end = StopsEnd::Well;
    rig.pass(3_000).await;
    assert_eq!(rig.log()[0], "stop c1");
    rig.runs("c2", &[("c1", 137)]);
    rig.pass(2_000).await;
    assert_eq!(rig.status()["arrivals"][0]["pods"][0]["containerID"], "c2");
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_refused_or_has_no_effect_is_repeated_once_a_second_and_no_faster() {
    for outcome in [StopsEnd::InError, StopsEnd::Well] {
        let rig = Rig::new();
        rig.runs("c1", &[]);
        rig.pass(100).await;
        rig.shared.world.lock().stops_end = outcome;
        rig.order(2);
        rig.pass(10_500).await;
        let stops = rig.log().iter().filter(|l| *l == "stop c1").count();
        assert_eq!(stops, 11);
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_its_runtime_is_not_ready_and_reports_the_version_that_returns() {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(2_000).await;
    assert_eq!(rig.readiness_of_runtime(), None);
    rig.shared.world.lock().runtime_down = true;
    rig.order(2);
    rig.pass(2_000).await;
    assert!(rig.readiness_of_runtime().unwrap().contains("no such file"));
    {
        let mut world = rig.shared.world.lock();
        (world.runtime_down, world.upgrades) = (false, 1);
        assert!(world.log.iter().all(|l| !l.starts_with("stop")));
    }
    rig.pass(2_000).await;
    assert_eq!(rig.readiness_of_runtime(), None);
    assert_eq!(rig.status()["runtime"], "test 2");
    assert!(rig.log().contains(&"stop c1".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_records_stops_no_container_before_its_first_list() {
    let mut rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(100).await;
    assert_eq!(
        rig.status()["capabilities"],
        json!(["Report", "Stop", "Supervise", "Checkpoint"])
    );
    {
        let mut world = rig.shared.world.lock();
        world.records = None;
        world.runtime_down = true;
    }
    rig.start();
    rig.pass(5_000).await;
    assert_eq!(
        rig.status()["capabilities"],
        json!(["Report", "Supervise", "Checkpoint"])
    );
    rig.shared.world.lock().runtime_down = false;
    rig.pass(5_000).await;
    assert_eq!(
        rig.status()["capabilities"],
        json!(["Report", "Stop", "Supervise", "Checkpoint"])
    );
}

#[tokio::test(start_paused = true)]
async fn an_agent_whose_object_was_deleted_makes_it_again_although_nothing_happens() {
    let rig = Rig::new();
    rig.pass(100).await;
    rig.log();
    rig.shared.world.lock().object = None;
    rig.pass(15 * 60_000).await;
    assert_eq!(rig.log(), ["write"]);
    assert_eq!(
        rig.status()["capabilities"],
        json!(["Report", "Stop", "Supervise", "Checkpoint"])
    );
    rig.pass(60 * 60_000).await;
    assert!(rig.log().is_empty(), "what is there is left alone");
}

#[tokio::test(start_paused = true)]
async fn a_member_in_a_crash_loop_is_reported_at_most_once_a_second() {
    let rig = Rig::new();
    rig.runs("c0", &[]);
    rig.pass(100).await;
    let ids: Vec<String> = (0..300).map(|i| format!("c{i}")).collect();
    rig.log();
    for i in 1..300 {
        let ended: Vec<(&str, i32)> = ids[..i].iter().map(|id| (id.as_str(), 1)).collect();
        rig.runs(&ids[i], &ended);
        rig.pass(100).await;
    }
    let log = rig.log();
    let writes = log.iter().filter(|l| *l == "write").count();
    assert!(
        (25..45).contains(&writes),
        "{writes} writes in half a minute"
    );
    rig.pass(20_000).await;
    rig.log();
    let ended: Vec<(&str, i32)> = ids.iter().map(|id| (id.as_str(), 1)).collect();
    rig.runs("last", &ended);
    rig.pass(100).await;
    assert!(
        rig.log().contains(&"write".to_owned()),
        "after a rest at once"
    );
}

#[tokio::test(start_paused = true)]
async fn an_object_that_was_collected_is_there_again_within_little_more_than_a_minute() {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(2_000).await;
    rig.shared.world.lock().object = None;
    rig.pass(75_000).await;
    assert_eq!(
        rig.status()["capabilities"],
        json!(["Report", "Stop", "Supervise", "Checkpoint"])
    );
}

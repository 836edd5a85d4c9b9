//! Timing and number of an agent's writes.

use super::*;

async fn running() -> Rig {
    let rig = Rig::new();
    rig.runs("c1", &[]);
    rig.pass(2_000).await;
    rig.log();
    rig.shared.world.lock().writes.clear();
    rig
}

fn writes(rig: &Rig) -> usize {
    rig.log().iter().filter(|line| *line == "write").count()
}

#[tokio::test(start_paused = true)]
async fn arrivals_of_large_gangs_are_batched_and_those_of_small_gangs_written_at_once() {
    for (members, written) in [(100, 1), (100_000, 0)] {
        let rig = running().await;
        rig.order_for(2, members);
        rig.runs("c2", &[("c1", 137)]);
        rig.pass(500).await;
        assert_eq!(writes(&rig), written, "{members}");
        rig.pass(100_000).await;
        assert_eq!(writes(&rig), 1 - written, "{members}");
        assert_eq!(rig.status()["arrivals"][0]["attempt"], 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_reported_at_once_even_if_other_changes_are_batched() {
    let rig = running().await;
    rig.order_for(2, 100_000);
    rig.runs("c2", &[("c1", 137)]);
    rig.pass(500).await;
    assert_eq!(writes(&rig), 0);
    rig.runs("c3", &[("c1", 137), ("c2", 9)]);
    rig.pass(100).await;
    assert_eq!(writes(&rig), 1);
    let reports = rig.status()["reports"].clone();
    assert_eq!(reports[1]["exitCode"], 9);
}

#[tokio::test(start_paused = true)]
async fn failures_a_few_seconds_apart_are_reported_at_once() {
    let rig = running().await;
    let ids: Vec<String> = (1..20).map(|i| format!("c{i}")).collect();
    for failed in 1..ids.len() {
        let ended: Vec<(&str, i32)> = ids[..failed].iter().map(|id| (id.as_str(), 7)).collect();
        rig.runs(&ids[failed], &ended);
        rig.pass(50).await;
        assert_eq!(writes(&rig), 1, "failure {failed}");
        rig.pass(2_950).await;
        assert_eq!(writes(&rig), 0, "one write for one fact");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_was_lost_is_not_made_again() {
    let rig = running().await;
    rig.shared.world.lock().lost_answers = 1;
    rig.runs("c2", &[("c1", 7)]);
    rig.pass(60_000).await;
    assert_eq!(rig.status()["reports"][0]["exitCode"], 7);
    assert_eq!(rig.shared.world.lock().writes.len(), 1, "stored once");
    rig.runs("c3", &[("c1", 7), ("c2", 8)]);
    rig.pass(60_000).await;
    assert_eq!(rig.status()["reports"][1]["exitCode"], 8);
    assert_eq!(rig.shared.world.lock().writes.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn no_request_is_sent_before_retry_after_has_passed() {
    let rig = running().await;
    rig.shared.world.lock().come_back = Some(40);
    rig.runs("c2", &[("c1", 7)]);
    rig.pass(39_000).await;
    assert_eq!(writes(&rig), 1);
    rig.pass(3_000).await;
    assert_eq!(writes(&rig), 1);
    rig.shared.world.lock().come_back = None;
    rig.pass(120_000).await;
    assert_eq!(rig.status()["reports"][0]["exitCode"], 7);
}

#[tokio::test(start_paused = true)]
async fn requests_to_an_unresponsive_server_back_off() {
    let rig = running().await;
    rig.shared.world.lock().lost_answers = u32::MAX;
    rig.runs("c2", &[("c1", 7)]);
    rig.pass(600_000).await;
    let asked = writes(&rig);
    assert!((15..30).contains(&asked), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_of_an_hour_is_capped_at_two_minutes() {
    let rig = running().await;
    rig.shared.world.lock().come_back = Some(3600);
    rig.runs("c2", &[("c1", 7)]);
    rig.pass(1_000).await;
    rig.shared.world.lock().come_back = None;
    rig.pass(120_000).await;
    assert_eq!(rig.status()["reports"][0]["exitCode"], 7);
}

//! After a loss of the manager at any point, the next process reaches the same end.

use lockstep_api::kueue::KueueWorkload;
use lockstep_api::workload::Phase;
use lockstep_sim::Solo;
use lockstep_sim::solo::gang;

use super::contested;

#[test]
fn a_crash_after_every_write_of_a_restart_in_place_gives_the_same_end() {
    let end = |crash: Option<usize>| {
        let mut w = Solo::new(gang(2));
        if let Some(n) = crash {
            w.crash_after(n);
        }
        w.settle();
        let before = w.uids();
        w.exit("g", 1, 3);
        w.settle();
        let writes = w.line().writes;
        let status = w.status();
        assert!(w.is_idle(), "{}", w.story(30));
        let counted = (
            status.attempt,
            status.restarts.counted,
            status.history.len(),
        );
        (
            writes,
            (status.phase, counted, w.restarts(), w.uids() == before),
        )
    };
    let (writes, whole) = end(None);
    assert_eq!(whole, (Some(Phase::Running), (2, 1, 1), vec![1, 1], true));
    for crash in 0..writes {
        assert_eq!(end(Some(crash)).1, whole, "crash after write {crash}");
    }
}

#[test]
fn a_crash_after_every_write_of_a_preemption_gives_the_same_end() {
    let end = |crash: Option<usize>| {
        let mut world = contested();
        let from = world.line().writes;
        if let Some(n) = crash {
            world.crash_after(n);
        }
        world.settle();
        let running = (world.running("high"), world.running("low"));
        let left = (world.intent("high"), world.placement("low").is_some());
        let writes = world.line().writes - from;
        (writes, (running, left, world.preemptions("high")))
    };
    let (writes, whole) = end(None);
    assert_eq!(whole, ((2, 0), (None, false), 1));
    for crash in 0..writes {
        assert_eq!(end(Some(crash)).1, whole, "crash after write {crash}");
    }
}

#[test]
fn a_lost_answer_to_any_write_of_a_start_gives_the_same_end() {
    let end = |lost: Option<usize>| {
        let mut w = Solo::new(gang(2));
        while lost.is_some_and(|n| w.line().writes < n) {
            let key = w.key().clone();
            w.cluster.pass(&key);
            w.schedule();
        }
        w.line().lost_answers = usize::from(lost.is_some());
        w.settle();
        (
            w.status().phase,
            w.status().ready,
            w.uids().len(),
            w.is_idle(),
        )
    };
    let whole = end(None);
    assert_eq!(whole, (Some(Phase::Running), "2/2".into(), 2, true));
    for lost in 0..10 {
        assert_eq!(
            end(Some(lost)),
            whole,
            "the answer after write {lost} is lost"
        );
    }
}

#[test]
fn a_crash_after_every_write_of_a_life_in_kueue_gives_the_same_end() {
    let end = |crash: Option<usize>| {
        let mut w = Solo::kueue(gang(2));
        w.create_of_kueue(
            lockstep_sim::WatchedKind::ResourceFlavor,
            serde_json::json!({"metadata": {"name": "any"}, "spec": {}}),
        );
        if let Some(n) = crash {
            w.crash_after(n);
        }
        w.settle();
        for _ in 0..2 {
            let key = w.quota_key();
            w.admit(&key, "any");
            w.settle();
            w.evict_quota(&key, "Preempted");
            w.settle();
            assert!(w.pods().is_empty(), "{}", w.story(30));
        }
        let key = w.quota_key();
        w.admit(&key, "any");
        w.settle();
        for index in 0..2 {
            w.exit("g", index, 0);
        }
        w.settle();
        let writes = w.line().writes;
        let quota = w.list::<KueueWorkload>();
        let said: Vec<(String, bool)> = (quota[0].status.conditions.iter())
            .map(|c| (c.type_.clone(), c.status == true.into()))
            .collect();
        let held = quota[0].metadata.finalizers.clone().unwrap_or_default();
        assert!(w.is_idle(), "{}", w.story(30));
        (writes, (w.status().phase, quota.len(), said, held.len()))
    };
    let (writes, whole) = end(None);
    assert_eq!((whole.0, whole.1, whole.3), (Some(Phase::Succeeded), 1, 0));
    for crash in 0..writes {
        assert_eq!(end(Some(crash)).1, whole, "crash after write {crash}");
    }
}

//! Moves of gangs away from nodes with signals.

mod world;

use std::collections::BTreeMap;

use chrono::TimeDelta;
use lockstep_api::workload::{
    CauseKind, CheckpointOutcome, GangMove, MoveOutcome, Phase, TrainingProgress,
};
use lockstep_api::{SignalLevel, TrainingWorkload};
use lockstep_lifecycle::{Plan, decide};
use lockstep_sim::Solo;
use lockstep_sim::solo::gang_with;
use serde_json::{Value, json};

use self::world::Moving;
use crate::barrier::attempts;
use crate::checkpoints::{asked, charged, outcome, request};

#[test]
fn a_gang_saves_and_leaves_a_faulty_node_once_without_a_charge() {
    let mut m = Moving::with_requests();
    let (left, uids) = (m.w.node_of("g", 2), m.w.uids());
    m.signal(&left, "xid", SignalLevel::Faulty, None);
    m.seconds(9);
    assert_eq!(m.moving(), None, "further signals are collected");
    m.seconds(2);
    assert_eq!(m.nodes(), std::slice::from_ref(&left));
    m.seconds(5);
    assert_eq!(
        (request(&m.w), m.has_begun()),
        (None, false),
        "no node is free"
    );
    m.permit(&[(2, "n3")]);
    m.seconds(2);
    assert_eq!(request(&m.w).unwrap().reason.as_str(), "NodeFaulty");
    assert_eq!(
        attempts(&mut m.w),
        [1, 1, 1],
        "they run until they have saved"
    );
    m.seconds(10);
    assert_eq!(outcome(&m.w), Some(CheckpointOutcome::Saved));
    m.finish();
    let s = m.status();
    assert_eq!((m.outcome(), charged(&m.w)), (Some(MoveOutcome::Moved), 0));
    assert_eq!((s.history.len(), s.history[0].recreated), (1, 1));
    assert_eq!(s.history[0].cause.kind, CauseKind::NodeFaulty);
    let domain = &s.domains[0];
    assert_eq!((domain.in_place_tries, domain.uncounted_tries), (0, 0));
    assert_ne!(m.w.node_of("g", 2), left);
    let stay = |uids: &BTreeMap<String, String>| ["g-0-0", "g-1-0"].map(|m| uids[m].clone());
    assert_eq!(stay(&m.w.uids()), stay(&uids));
    let avoided = &s.gangs[0].avoid[0];
    assert_eq!(
        (&avoided.node, avoided.reason.as_str()),
        (&left, "NodeFaulty")
    );
}

#[test]
fn a_move_is_due_by_the_level_the_deadline_and_the_checkpoints() {
    use SignalLevel::{Faulty, Leaving, Suspect};
    for (asks, level, deadline, interval, expected) in [
        (true, Suspect, None, None, None),
        (true, Faulty, Some(600), None, Some(0)),
        (true, Leaving, None, None, Some(0)),
        (true, Leaving, Some(60), None, Some(50)),
        (true, Leaving, Some(60), Some(20), Some(50)),
        (false, Leaving, None, None, Some(10)),
        (false, Leaving, Some(60), None, Some(50)),
        // Checkpoints after 15, 30 and 45 minutes, of which that after 45 is later than 50 - 15.
        (false, Leaving, Some(60), Some(15), Some(45)),
        (false, Leaving, None, Some(4), Some(4)),
    ] {
        let mut m = if asks {
            Moving::with_requests()
        } else {
            Moving::without_requests(&json!({}))
        };
        let node = m.w.node_of("g", 0);
        m.signal(&node, "s", level, deadline);
        let start = m.w.now();
        let mut requested = None;
        for second in (0..4000).step_by(10) {
            if let Some(minutes) = interval
                && second > 0
                && second % (minutes * 60) == 0
            {
                m.saved(minutes * 60);
            }
            m.passes();
            if let Some(moving) = m.moving() {
                requested = Some((moving.requested_at - start).num_minutes());
                break;
            }
            m.w.later(10);
        }
        assert_eq!(
            requested, expected,
            "{asks} {level:?} {deadline:?} {interval:?}"
        );
    }
}

#[test]
fn a_long_save_makes_the_move_due_earlier() {
    let mut m = Moving::new(asked(
        Some("save"),
        &json!({"checkpoint": {"onRequest": {"timeoutSeconds": 1200}}}),
    ));
    let node = m.w.node_of("g", 0);
    m.signal(&node, "s", SignalLevel::Leaving, Some(60));
    assert_eq!(
        m.requested_after(60),
        Some(38),
        "20 minutes and two before the deadline"
    );
    let begin_by = m.moving().unwrap().begin_by.unwrap();
    assert_eq!((begin_by - m.w.now()).num_minutes(), 0);
}

#[test]
fn nodes_announced_one_after_the_other_are_left_by_one_move() {
    let mut w = Solo::supervised(gang_with(8, &json!({"checkpoint": {"onRequest": {}}})));
    w.settle();
    let mut m = Moving::new(w);
    for node in ["n0", "n1", "n2", "n3"] {
        m.signal(node, "maintenance", SignalLevel::Leaving, Some(60));
        m.minutes(2);
    }
    assert_eq!(m.moving(), None);
    m.minutes(43);
    assert_eq!(m.nodes(), ["n0", "n1", "n2", "n3"]);
}

#[test]
fn a_signal_before_the_stop_joins_the_move_and_an_old_target_does_not_count() {
    let mut m = Moving::without_requests(&json!({}));
    let (first, second) = (m.w.node_of("g", 2), m.w.node_of("g", 0));
    m.signal(&first, "xid", SignalLevel::Faulty, None);
    m.seconds(11);
    let id = m.moving().unwrap().id;
    m.signal(&second, "maintenance", SignalLevel::Leaving, Some(600));
    m.permit(&[(2, "n3")]);
    m.seconds(2);
    assert_eq!((m.nodes().len(), m.has_begun()), (2, false));
    assert_eq!(m.moving().unwrap().id, id);
    m.permit(&[(0, "n2"), (1, "n2"), (2, "n3")]);
    m.seconds(1);
    m.finish();
    assert_eq!((attempts(&mut m.w), charged(&m.w)), (vec![2, 2, 2], 0));
    assert_eq!(m.status().history[0].recreated, 3);
}

#[test]
fn a_move_and_its_request_are_withdrawn_with_the_signal() {
    let mut m = Moving::new(asked(Some("ignore"), &json!({})));
    let node = m.w.node_of("g", 2);
    m.signal(&node, "disrupted", SignalLevel::Leaving, None);
    m.permit(&[(2, "n3")]);
    m.seconds(13);
    assert!(request(&m.w).unwrap().is_open());
    m.signals.clear();
    m.seconds(2);
    assert_eq!(
        (m.moving(), outcome(&m.w)),
        (None, Some(CheckpointOutcome::Withdrawn))
    );
    assert_eq!(
        (attempts(&mut m.w), m.condition()),
        (vec![1, 1, 1], String::new())
    );
    // The taint is set again.
    m.signal(&node, "disrupted", SignalLevel::Leaving, None);
    m.seconds(13);
    assert_eq!(m.nodes(), [node]);
}

#[test]
fn a_gang_without_free_node_saves_once_before_the_deadline_and_stays() {
    let mut m = Moving::with_requests();
    let node = m.w.node_of("g", 2);
    m.signal(&node, "maintenance", SignalLevel::Leaving, Some(15));
    m.minutes(10);
    assert_eq!((m.nodes(), request(&m.w)), (vec![node.clone()], None));
    let begin_by = m.moving().unwrap().begin_by.unwrap();
    let left = (begin_by - m.w.now()).num_seconds();
    m.seconds(left + 10);
    assert_eq!(outcome(&m.w), Some(CheckpointOutcome::Saved));
    let requested_at = request(&m.w).unwrap().requested_at;
    m.minutes(4);
    assert_eq!(request(&m.w).unwrap().requested_at, requested_at);
    assert_eq!(attempts(&mut m.w), [1, 1, 1]);
    assert_eq!(
        m.moving(),
        None,
        "the deadline and with it the signal is over"
    );
}

#[test]
fn a_gang_that_stays_moves_for_other_signals_only() {
    let mut m = Moving::without_requests(&json!({}));
    let node = m.w.node_of("g", 2);
    m.signal(&node, "xid", SignalLevel::Faulty, None);
    m.seconds(11);
    let id = m.moving().unwrap().id;
    m.w.edit(|spec| spec.suspend = true);
    m.w.rounds(3);
    m.w.edit(|spec| spec.suspend = false);
    m.w.settle();
    let key = m.w.key().clone();
    // The manager of this cluster reads no signals, so the record is written by hand.
    let stayed = GangMove {
        id,
        reason: CauseKind::NodeFaulty,
        nodes: Vec::new(),
        settled: vec![lockstep_api::workload::NodeToLeave {
            node: node.clone(),
            signal: "xid".into(),
            deadline: None,
        }],
        with_restart: false,
        requested_at: m.w.now(),
        begin_by: None,
        began_at: None,
        outcome: Some(MoveOutcome::Stayed),
        ended_at: Some(m.w.now()),
    };
    m.w.cluster.edit::<TrainingWorkload>(&key, |w| {
        w.status.get_or_insert_default().gangs[0].moving = Some(stayed.clone());
    });
    let node_now = m.w.node_of("g", 2);
    assert_eq!(node_now, node, "it is placed there again");
    m.seconds(20);
    assert_eq!(m.moving(), Some(stayed));
    assert!(
        m.condition().contains("the gang stays"),
        "{}",
        m.condition()
    );
    let other = m.w.node_of("g", 0);
    m.signal(&other, "xid", SignalLevel::Faulty, None);
    m.seconds(11);
    assert_eq!((m.nodes(), m.outcome()), (vec![other.clone()], None));
    m.signal(&node, "maintenance", SignalLevel::Leaving, Some(5));
    m.seconds(1);
    assert_eq!((m.nodes(), m.outcome()), (vec![other, node], None));
}

#[test]
fn a_move_whose_gang_loses_its_placement_before_the_stop_settles_no_signal() {
    let mut m = Moving::without_requests(&json!({}));
    let node = m.w.node_of("g", 2);
    m.signal(&node, "xid", SignalLevel::Faulty, None);
    m.seconds(11);
    m.w.edit(|spec| spec.suspend = true);
    m.pass();
    m.pass();
    assert_eq!(m.moving().unwrap().outcome, Some(MoveOutcome::Withdrawn));
    m.w.rounds(3);
    m.w.edit(|spec| spec.suspend = false);
    m.w.settle();
    assert_eq!(m.w.node_of("g", 2), node, "it is placed there again");
    m.permit(&[(2, "n3")]);
    m.seconds(11);
    m.finish();
    assert_eq!(m.outcome(), Some(MoveOutcome::Moved));
}

#[test]
fn a_hanging_gang_leaves_a_faulty_node_without_a_request() {
    let mut m = Moving::with_requests();
    let node = m.w.node_of("g", 2);
    m.signal(&node, "xid", SignalLevel::Faulty, None);
    m.seconds(11);
    let (key, long_ago) = (m.w.key().clone(), m.w.now() - TimeDelta::minutes(30));
    m.w.cluster.edit::<TrainingWorkload>(&key, |w| {
        w.status.get_or_insert_default().progress = Some(TrainingProgress {
            step_time: long_ago,
            steps_per_hour: Some(3600),
            ..TrainingProgress::default()
        });
    });
    m.permit(&[(2, "n3")]);
    m.passes();
    assert_eq!(outcome(&m.w), Some(CheckpointOutcome::Unsupported));
    m.finish();
    assert_eq!((m.outcome(), charged(&m.w)), (Some(MoveOutcome::Moved), 0));
}

#[test]
fn only_restart_domains_with_members_on_the_node_restart() {
    let mut m = Moving::without_requests(
        &json!({"failurePolicy": {"restartScope": "Replica", "inPlace": {"withoutSupervisor": "Allow"}}}),
    );
    let node = m.w.node_of("g", 2);
    m.signal(&node, "xid", SignalLevel::Faulty, None);
    m.permit(&[(2, "n3")]);
    m.seconds(11);
    m.finish();
    assert_eq!(attempts(&mut m.w), [1, 1, 2]);
    assert_eq!(m.outcome(), Some(MoveOutcome::Moved));
}

#[test]
fn a_rule_that_names_the_reason_decides_and_an_empty_match_does_not() {
    let rules = |action: &str, reasons: Value| json!({"failurePolicy": {"rules": [{"name": "mine", "match": {"reasons": reasons}, "action": action}]}});
    for (action, reasons, moves, recreated) in [
        ("Ignore", json!(["NodeFaulty"]), false, 0),
        ("RecreateGang", json!(["NodeFaulty"]), true, 3),
        ("FailWorkload", json!([]), true, 1),
        ("Ignore", json!(["NodeLeaving"]), true, 1),
    ] {
        let mut m = Moving::without_requests(&rules(action, reasons));
        let node = m.w.node_of("g", 2);
        m.signal(&node, "xid", SignalLevel::Faulty, None);
        m.permit(&[(2, "n3")]);
        m.seconds(11);
        assert_eq!(m.has_begun(), moves, "{action}");
        if moves {
            m.finish();
            let last = &m.status().history[0];
            assert_eq!(last.recreated, recreated, "{action}");
        } else {
            let stays = "the gang stays by rule mine of failurePolicy";
            assert!(m.condition().ends_with(stays), "{}", m.condition());
        }
    }
}

#[test]
fn a_restart_for_a_failure_leaves_the_node_if_the_scheduler_permits_the_move() {
    let mut m = Moving::new(asked(Some("ignore"), &json!({})));
    let node = m.w.node_of("g", 2);
    m.signal(&node, "xid", SignalLevel::Faulty, None);
    m.permit(&[(2, "n3")]);
    m.seconds(13);
    assert!(request(&m.w).unwrap().is_open());
    m.w.exit("g", 0, 1);
    m.seconds(3);
    m.finish();
    assert_eq!(
        (attempts(&mut m.w), m.outcome()),
        (vec![2, 2, 2], Some(MoveOutcome::Moved))
    );
    let last = &m.status().history[0];
    assert_eq!(
        (last.cause.kind, last.counted, last.recreated),
        (CauseKind::ContainerExit, true, 1)
    );
}

/// The cause of the last restart, whether it was counted, and its new pods.
fn last_restart(m: &Moving) -> (CauseKind, bool, i32) {
    let last = &m.status().history[0];
    (last.cause.kind, last.counted, last.recreated)
}

#[test]
fn a_restart_for_another_reason_leaves_suspect_nodes_and_nodes_that_end_soon() {
    for (level, minutes) in [
        (SignalLevel::Suspect, None),
        (SignalLevel::Leaving, Some(600)),
    ] {
        let mut m = Moving::without_requests(&json!({}));
        let node = m.w.node_of("g", 2);
        m.signal(&node, "s", level, minutes);
        m.permit(&[(2, "n3")]);
        m.minutes(5);
        assert_eq!(m.moving(), None, "{level:?} alone moves nothing");
        m.w.exit("g", 0, 1);
        m.seconds(3);
        let avoided = &m.status().gangs[0].avoid;
        assert_eq!(avoided[0].node, node);
        m.finish();
        assert_eq!(last_restart(&m), (CauseKind::ContainerExit, true, 1));
    }
}

#[test]
fn a_restart_stays_in_place_if_no_node_is_free_or_the_signal_is_for_later() {
    let day = 24 * 60;
    let cases = [
        (SignalLevel::Suspect, None, false, false),
        (SignalLevel::Leaving, Some(2 * day), true, false),
        (SignalLevel::Suspect, None, true, true),
    ];
    for (level, minutes, permitted, observes) in cases {
        let mut m = Moving::without_requests(&json!({}));
        m.observes = observes;
        let node = m.w.node_of("g", 2);
        m.signal(&node, "s", level, minutes);
        if permitted {
            m.permit(&[(2, "n3")]);
        }
        m.seconds(60);
        m.w.exit("g", 0, 1);
        m.seconds(20);
        assert_eq!(m.status().phase, Some(Phase::Running), "{level:?}");
        assert_eq!(last_restart(&m), (CauseKind::ContainerExit, true, 0));
        assert_eq!(m.moving(), None);
    }
}

#[test]
fn mode_observe_shows_the_plan_and_does_nothing() {
    let mut m = Moving::without_requests(&json!({}));
    m.observes = true;
    let node = m.w.node_of("g", 2);
    m.signal(&node, "maintenance", SignalLevel::Leaving, Some(60));
    m.permit(&[(2, "n3")]);
    m.minutes(55);
    assert_eq!((m.moving(), m.status().gangs[0].avoid.len()), (None, 0));
    let end = "the gang would move as soon as all members run; nodeHealth.mode is Observe";
    assert!(m.condition().ends_with(end), "{}", m.condition());
    let start = format!("node {node} (signal maintenance, deadline ");
    assert!(m.condition().starts_with(&start), "{}", m.condition());
}

#[test]
fn the_condition_has_the_plan() {
    let mut m = Moving::without_requests(&json!({}));
    let node = m.w.node_of("g", 2);
    m.saved(900);
    m.signal(&node, "maintenance", SignalLevel::Leaving, Some(60));
    m.seconds(1);
    assert!(
        m.condition()
            .contains("the gang moves after its next checkpoint, at ")
    );
    m.minutes(51);
    assert!(
        m.condition()
            .ends_with("the gang moves once other nodes are found")
    );
    m.permit(&[(2, "n3")]);
    m.pass();
    m.pass();
    assert!(
        m.condition().ends_with("the gang moves now"),
        "{}",
        m.condition()
    );
}

/// A manager that is lost after any write of the move continues it, once.
#[test]
fn a_move_continues_after_a_crash_at_each_write() {
    for writes in 1..20 {
        let mut m = Moving::without_requests(&json!({}));
        let node = m.w.node_of("g", 2);
        m.signal(&node, "xid", SignalLevel::Faulty, None);
        m.permit(&[(2, "n3")]);
        m.seconds(11);
        m.w.crash_after(writes);
        m.finish();
        assert_eq!(m.outcome(), Some(MoveOutcome::Moved), "{writes}");
        assert_eq!(
            (attempts(&mut m.w), charged(&m.w)),
            (vec![2, 2, 2], 0),
            "{writes}"
        );
        assert_eq!(m.status().history.len(), 1, "{writes}");
    }
}

#[test]
fn a_left_node_is_avoided_while_its_signal_stands_and_until_it_is_another_machine() {
    let mut m = Moving::without_requests(&json!({}));
    let node = m.w.node_of("g", 2);
    m.signal(&node, "xid", SignalLevel::Faulty, None);
    m.permit(&[(2, "n3")]);
    m.seconds(11);
    m.finish();
    let passes = |m: &mut Moving| (0..5).for_each(|_| _ = m.pass());
    for _ in 0..20 {
        m.w.later(60);
        passes(&mut m);
    }
    assert_eq!(m.status().gangs[0].avoid[0].node, node);
    let key = m.w.key().clone();
    m.w.cluster.edit::<TrainingWorkload>(&key, |w| {
        let status = w.status.get_or_insert_default();
        status.gangs[0].avoid[0].machine = "another".into();
    });
    passes(&mut m);
    assert_eq!(m.status().gangs[0].avoid.len(), 0);
}

#[test]
fn a_deadline_that_moves_beyond_the_horizon_withdraws_the_move() {
    let mut m = Moving::without_requests(&json!({}));
    let node = m.w.node_of("g", 2);
    m.signal(&node, "maintenance", SignalLevel::Leaving, Some(15));
    m.minutes(6);
    assert_eq!((m.nodes(), m.outcome()), (vec![node.clone()], None));
    m.signals.clear();
    m.signal(
        &node,
        "maintenance",
        SignalLevel::Leaving,
        Some(3 * 24 * 60),
    );
    m.seconds(2);
    assert_eq!(m.moving().map(|m| m.settled), None);
    // It counts when it is near.
    m.signals.clear();
    m.signal(&node, "maintenance", SignalLevel::Leaving, Some(5));
    m.permit(&[(2, "n3")]);
    m.seconds(11);
    m.finish();
}

#[test]
fn a_signal_for_which_the_gang_stays_hides_no_other_signal_of_the_node() {
    let rules = json!({"failurePolicy": {"rules": [{"name": "mine", "match": {"reasons": ["NodeFaulty"]}, "action": "Ignore"}]}});
    let mut m = Moving::without_requests(&rules);
    let node = m.w.node_of("g", 2);
    m.signal(&node, "xid", SignalLevel::Faulty, None);
    m.permit(&[(2, "n3")]);
    m.minutes(2);
    assert_eq!(m.moving(), None);
    m.signal(&node, "maintenance", SignalLevel::Leaving, Some(5));
    m.seconds(11);
    m.finish();
    assert_eq!(m.status().history[0].cause.kind, CauseKind::NodeLeaving);
}

#[test]
fn a_gang_that_left_a_node_for_another_reason_avoids_it_too() {
    let mut m = Moving::without_requests(&json!({}));
    let node = m.w.node_of("g", 2);
    m.signal(&node, "xid", SignalLevel::Faulty, None);
    m.seconds(11);
    assert_eq!(m.nodes(), std::slice::from_ref(&node));
    // Its member runs elsewhere now. The signals stand at a node without members.
    let signals = m.signals.remove(&node).unwrap();
    m.signals.insert("n3".to_owned(), signals);
    let key = m.w.key().clone();
    m.w.cluster.edit::<TrainingWorkload>(&key, |w| {
        let moving = w.status.as_mut().unwrap().gangs[0].moving.as_mut();
        moving.unwrap().nodes[0].node = "n3".to_owned();
    });
    m.seconds(2);
    assert_eq!(m.outcome(), Some(MoveOutcome::Moved));
    assert_eq!(m.status().gangs[0].avoid[0].node, "n3");
}

#[test]
fn a_move_joins_no_restart_that_needs_other_nodes_itself() {
    let rule = json!({"name": "mine", "match": {"exitCodes": {"operator": "In", "values": [7]}}, "action": "RestartGang", "failedMember": "ReplaceElsewhere"});
    let more = json!({"failurePolicy": {"rules": [rule]}});
    let mut m = Moving::new(asked(Some("ignore"), &more));
    let node = m.w.node_of("g", 2);
    m.signal(&node, "xid", SignalLevel::Faulty, None);
    m.permit(&[(2, "n3")]);
    m.seconds(13);
    assert!(request(&m.w).unwrap().is_open());
    m.w.exit("g", 0, 7);
    m.w.kubelets();
    for node in m.w.node_names() {
        m.w.agent(&node);
    }
    let replaced = |m: &Moving| Some(m.status().domains[0].incident.clone()?.replace);
    for _ in 0..5 {
        if replaced(&m).is_none() {
            m.pass();
        }
    }
    assert_eq!(replaced(&m), Some(vec!["g/0/0".to_owned()]));
    let view = m.view();
    match decide(&view, m.w.now()).plan {
        Plan::Record(status) | Plan::Idle(status) => {
            assert_eq!(status.gangs[0].moving.as_ref().unwrap().began_at, None);
        }
        Plan::Act(_) => {}
    }
}

//! A gang that uses every node, one of which is briefly unready.

use lockstep_api::workload::Phase;
use lockstep_sim::Solo;
use lockstep_sim::pods::node_of;
use lockstep_sim::solo::gang;

/// Distinct phases and counts while a node is unready for some seconds, in order.
fn shown(w: &mut Solo, node: &str) -> Vec<(Option<Phase>, String)> {
    let mut seen = Vec::new();
    w.lose(node);
    for second in 0..30 {
        if second == 10 {
            w.find(node);
        }
        w.rounds(1);
        let s = w.status();
        let now = (s.phase, s.ready);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    seen
}

#[test]
fn a_running_gang_stays_running_and_counts_ready_members() {
    let mut w = Solo::new(gang(8));
    w.settle();
    let before = w.uids();
    let seen = shown(&mut w, "n1");
    assert_eq!(seen, [(Some(Phase::Running), "6/8".to_owned())]);
    assert_eq!(w.uids(), before);
}

#[test]
fn a_starting_gang_stays_starting_and_counts_ready_members() {
    let mut w = Solo::new(gang(8));
    // Two of four nodes start no pods yet.
    for node in ["n1", "n2"] {
        w.fault(node, |f| f.starts_nothing = true);
    }
    w.wait(10);
    assert_eq!(w.status().phase, Some(Phase::Starting));
    let before = w.uids();
    let seen = shown(&mut w, "n1");
    assert_eq!(seen, [(Some(Phase::Starting), "4/8".to_owned())]);
    assert_eq!(w.uids(), before);
    w.faults(|f| f.starts_nothing = false);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_gang_without_bound_members_is_still_placed() {
    let mut w = Solo::new(gang(8));
    // Pods exist, but kube-scheduler has not seen them yet.
    while w.pods().len() < 8 {
        w.control();
        w.schedule();
        w.later(1);
    }
    assert!(w.pods().iter().all(|p| node_of(p).is_none()));
    w.lose("n1");
    // nodeLostSeconds
    w.rounds(60);
    w.until("the lost node is no longer in the placement", |w| {
        w.status().message.contains("6 of 8 members have a node")
    });
    let s = w.status();
    assert_eq!(
        (s.phase, s.ready.as_str()),
        (Some(Phase::Starting), "6/8"),
        "{}",
        w.story(40)
    );
    w.find("n1");
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

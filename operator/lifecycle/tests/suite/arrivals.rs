//! Members at the barrier of an open incident, as the status names them.

use chrono::TimeDelta;
use lockstep_api::workload::{BarrierArrivals, Incident, TrainingWorkloadStatus};
use lockstep_sim::Solo;
use serde_json::json;

use super::barrier::denied;

/// Eight running members, two on each of four nodes.
fn running() -> Solo {
    let mut w = Solo::supervised(denied(8, &json!([])));
    w.settle();
    w.patience = TimeDelta::seconds(400);
    w
}

fn incident(status: &TrainingWorkloadStatus) -> Option<&Incident> {
    status.domains[0].incident.as_ref()
}

/// Each change of the numbers in the written statuses, with the number of the write.
fn changes(written: &[TrainingWorkloadStatus]) -> Vec<Option<BarrierArrivals>> {
    let numbers = written.iter().map(|s| incident(s)?.arrivals.clone());
    let mut numbers: Vec<_> = numbers.collect();
    numbers.dedup();
    numbers
}

/// Restarts eight members, of which those of one node arrive after each of these delays, and
/// returns the written statuses.
fn restart(w: &mut Solo, seconds: [i64; 4]) -> Vec<TrainingWorkloadStatus> {
    let before = w.written().len();
    for (node, seconds) in w.node_names().into_iter().zip(seconds) {
        w.fault(&node, |f| f.news_take = TimeDelta::seconds(seconds));
    }
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!((w.status().attempt, w.status().restarts.in_place), (2, 1));
    w.written().split_off(before)
}

fn until_numbers(w: &mut Solo) {
    w.until("the numbers", |w| {
        incident(&w.status()).is_some_and(|i| i.arrivals.is_some())
    });
}

/// A restart that waits for the silent node of the last member, which is returned.
fn restart_of_which_one_node_is_silent() -> (Solo, String) {
    let mut w = running();
    let last = w.node_of("g", 7);
    w.fault(&last, |f| f.silent_agent = true);
    w.exit("g", 0, 1);
    until_numbers(&mut w);
    (w, last)
}

#[test]
fn a_restart_in_less_than_five_seconds_writes_no_arrivals() {
    let mut w = running();
    let written = restart(&mut w, [0, 1, 2, 2]);
    assert!(written.iter().any(|s| incident(s).is_some()));
    assert_eq!(changes(&written), [None]);
}

#[test]
fn a_slow_restart_shows_who_has_arrived_at_most_every_ten_seconds() {
    let mut w = running();
    let written = restart(&mut w, [0, 7, 8, 60]);
    let ordered_at = written
        .iter()
        .find_map(|s| incident(s)?.ordered_at)
        .unwrap();
    let shown = changes(&written);
    assert_eq!((&shown[0], shown.last().unwrap()), (&None, &None), "gone");
    let shown: Vec<BarrierArrivals> = shown.into_iter().flatten().collect();
    let numbers: Vec<_> = shown.iter().map(|a| (a.arrived, a.expected)).collect();
    // The last numbers are part of the write of the end of the wait.
    assert_eq!(numbers, [(2, 8), (6, 8), (8, 8)], "{shown:?}");
    let late = ["g/6/0", "g/7/0"].map(str::to_owned);
    assert_eq!(shown[1].late, late);
    let after = |a: &BarrierArrivals| (a.arrivals_time - ordered_at).num_seconds();
    assert_eq!((after(&shown[0]), after(&shown[1])), (5, 15));
}

#[test]
fn numbers_that_stay_cause_no_write() {
    let (mut w, _) = restart_of_which_one_node_is_silent();
    let before = w.written().len();
    w.rounds(30);
    assert_eq!(w.written().len(), before);
}

#[test]
fn no_member_is_late_before_another_one_waits() {
    let mut w = running();
    w.faults(|f| f.news_take = TimeDelta::seconds(20));
    w.exit("g", 0, 1);
    until_numbers(&mut w);
    let shown = incident(&w.status()).unwrap().arrivals.clone().unwrap();
    assert_eq!((shown.arrived, shown.expected, shown.late.len()), (0, 8, 0));
}

#[test]
fn a_crash_of_the_manager_changes_no_numbers() {
    let (mut w, last) = restart_of_which_one_node_is_silent();
    let before = w.status();
    let writes = w.written().len();
    w.crash();
    w.rounds(15);
    assert_eq!(incident(&w.status()), incident(&before));
    assert_eq!(changes(&w.written()[writes..]).len(), 0);
    w.fault(&last, |f| f.silent_agent = false);
    w.settle();
    assert_eq!(incident(&w.status()), None);
}

#[test]
fn a_new_pod_that_the_others_wait_for_is_late() {
    let mut w = running();
    let last = w.node_of("g", 7);
    w.fault(&last, |f| f.starts_nothing = true);
    w.delete_pod("g", 7);
    until_numbers(&mut w);
    let shown = incident(&w.status()).unwrap().arrivals.clone().unwrap();
    let late = vec!["g/7/0".to_owned()];
    assert_eq!((shown.arrived, shown.expected, shown.late), (7, 8, late));
}

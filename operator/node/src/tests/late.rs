//! Reports on members that do not arrive.

use std::time::Duration;

use super::*;

/// An order with a deadline of 10 s.
fn called(node: &mut Node) {
    node.order(2, Some(1));
    for order in node.orders.values_mut().flat_map(|o| &mut o.domains) {
        order.deadline_seconds = Some(10);
    }
}

fn late(node: &Node) -> Vec<&str> {
    let arrivals = node.published.arrivals.iter();
    arrivals.flat_map(|a| &a.late).map(String::as_str).collect()
}

#[test]
fn a_missing_arrival_is_reported_after_its_deadline() {
    let mut node = Node::with(2);
    node.pass();
    called(&mut node);
    let plan = node.pass();
    assert_eq!(plan.wake_after, Some(Duration::from_secs(10)));
    node.now = 10;
    node.pass();
    assert!(late(&node).is_empty());
    node.now = 11;
    node.pass();
    assert_eq!(late(&node), ["p0", "p1"]);
    assert_eq!(node.published.arrivals[0].attempt, 2);
    let again = node.pass();
    assert_eq!((again.status, again.records), (None, None));
}

#[test]
fn a_clock_that_is_set_back_delays_no_arrival_and_no_report() {
    let mut node = Node::with(2);
    node.now = 1000;
    node.pass();
    called(&mut node);
    node.exit(0, 137);
    node.restart(0);
    node.pass();
    assert!(node.published.arrivals.is_empty(), "gathering");
    node.now = 100;
    node.pass();
    assert_eq!(node.published.arrivals[0].pods.len(), 1);
    assert!(late(&node).is_empty());
    node.now = 110;
    node.pass();
    assert_eq!(late(&node), ["p1"]);
}

#[test]
fn one_that_comes_after_all_is_late_no_longer() {
    let mut node = Node::with(2);
    node.pass();
    called(&mut node);
    node.pass();
    node.exit(0, 137);
    node.restart(0);
    node.now = 12;
    node.pass();
    let arrival = &node.published.arrivals[0];
    assert_eq!((arrival.pods.len(), late(&node)), (1, vec!["p1"]));
    node.exit(1, 137);
    node.restart(1);
    node.now = 13;
    node.pass();
    let arrival = &node.published.arrivals[0];
    assert_eq!((arrival.pods.len(), arrival.late.len()), (2, 0));
    assert!(node.records.pods.values().all(|r| r.called.is_none()));
}

#[test]
fn one_whose_container_ended_and_is_not_started_again_is_late_as_well() {
    let mut node = Node::with(1);
    node.pass();
    called(&mut node);
    node.pass();
    node.exit(0, 137);
    node.pass();
    node.now = 11;
    node.pass();
    assert_eq!(late(&node), ["p0"]);
}

#[test]
fn another_order_gives_it_the_time_again_and_a_restarted_agent_does_not() {
    let mut node = Node::with(1);
    node.pass();
    called(&mut node);
    node.pass();
    node.now = 4;
    called(&mut node);
    for order in node.orders.values_mut().flat_map(|o| &mut o.domains) {
        order.attempt = 3;
    }
    node.pass();
    node.now = 13;
    node.pass();
    assert!(late(&node).is_empty());
    node.records = serde_json::from_value(serde_json::to_value(&node.records).unwrap()).unwrap();
    node.now = 14;
    node.pass();
    assert_eq!(late(&node), ["p0"]);
}

#[test]
fn no_member_is_overdue_at_a_first_start_or_without_a_deadline() {
    let mut node = Node::with(1);
    node.pass();
    node.order(2, Some(1));
    assert_eq!(node.pass().wake_after, None);
    node.now = 1000;
    assert!(node.pass().status.is_none());
}

/// The order of a gang of thousands.
fn large(node: &mut Node) {
    for order in node.orders.values_mut().flat_map(|o| &mut o.domains) {
        order.world = 5000;
    }
}

#[test]
fn arrivals_of_a_large_gang_wait_for_their_turn_and_a_failure_does_not() {
    let mut node = Node::with(1);
    large(&mut node);
    node.pass();
    node.exit(0, 1);
    assert_eq!(node.pass().slot, Duration::ZERO, "a failure");
    called(&mut node);
    large(&mut node);
    node.pass();
    node.restart(0);
    let arrived = node.pass();
    assert!(arrived.status.is_some() && !arrived.slot.is_zero());
}

#[test]
fn the_end_of_a_large_job_waits_for_its_turn() {
    let mut node = Node::with(1);
    large(&mut node);
    node.pass();
    node.exit(0, 0);
    let plan = node.pass();
    assert!(plan.status.is_some() && !plan.slot.is_zero());
}

#[test]
fn an_agent_with_an_order_that_is_older_than_what_runs_does_nothing_with_it() {
    let mut node = Node::with(2);
    node.order(3, Some(1));
    node.settle();
    let arrived = node.arrived();
    assert_eq!(arrived[0].0, 3);
    // Its watch began at a lagging server.
    called(&mut node);
    for seconds in [0, 5, 60, 600] {
        node.now += seconds;
        let plan = node.pass();
        assert_eq!((plan.stop.len(), plan.messages.len()), (0, 0), "{plan:?}");
        assert_eq!((plan.status, plan.records), (None, None));
        assert_eq!((node.arrived(), late(&node)), (arrived.clone(), Vec::new()));
    }
}

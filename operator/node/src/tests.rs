//! Scenarios of one node with a small runtime: containers exit, restart and are stopped by the
//! plan.

mod checkpoints;
mod forgets;
mod late;

use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::RestartOrderSpec;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::node_agent::ReportKind::{self, Exited, Stopped};
use lockstep_api::restart_order::{DomainOrder, RestartsSeen};

use super::*;

fn at(s: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(s, 0).unwrap()
}

/// A node with the members of one domain, its agent's records and its clock.
struct Node {
    orders: NamespacedOrders,
    pods: Vec<NodePod>,
    records: Records,
    published: NodeAgentStatus,
    now: i64,
}

impl Node {
    fn with(members: i32) -> Self {
        let pod = |i| NodePod {
            uid: format!("p{i}"),
            workload_uid: "w".into(),
            domain: "d".into(),
            member: Some(Member::new("g", 0, i)),
            attempt: 1,
            training: "t".into(),
            containers: vec![ObservedContainer {
                id: format!("p{i}c0"),
                restarts: 0,
                created_at: at(0),
                exit: None,
            }],
            ..NodePod::default()
        };
        let mut node = Self {
            orders: BTreeMap::new(),
            pods: (0..members).map(pod).collect(),
            records: Records::default(),
            published: NodeAgentStatus::default(),
            now: 1,
        };
        node.order(1, None);
        node
    }

    /// An order decided before any restart.
    fn order(&mut self, attempt: i64, since: Option<i64>) {
        self.order_after(attempt, since, 0);
    }

    /// An order decided after this many restarts of each member.
    fn order_after(&mut self, attempt: i64, since: Option<i64>, restarts_seen: i32) {
        let members: MemberSet = self.pods.iter().filter_map(|p| p.member.clone()).collect();
        let domain = DomainOrder {
            key: "d".into(),
            attempt,
            members: members.to_ranges(),
            since: since.map(at),
            restarts_seen,
            ..DomainOrder::default()
        };
        self.orders = BTreeMap::from([(
            (String::new(), "w".into()),
            RestartOrderSpec {
                workload_uid: "w".into(),
                domains: vec![domain],
            },
        )]);
    }

    /// Members with other restart counts.
    fn exceptions(&mut self, seen: &[(&str, i32)]) {
        for order in self.orders.values_mut().flat_map(|o| &mut o.domains) {
            let exceptions = seen.iter().map(|(members, restarts)| RestartsSeen {
                restarts: *restarts,
                members: vec![(*members).to_owned()],
            });
            order.exceptions = exceptions.collect();
        }
    }

    /// One decision of the agent. The caller executes stops.
    fn pass(&mut self) -> NodePlan {
        let view = NodeView {
            node: "n",
            orders: &self.orders,
            pods: &self.pods,
            listed: true,
            records: &self.records,
            published: &self.published,
        };
        let plan = decide(&view, at(self.now));
        if let Some(r) = &plan.records {
            self.records = r.clone();
        }
        if let Some(s) = &plan.status {
            self.published = s.clone();
        }
        plan
    }

    fn exit(&mut self, pod: usize, code: i32) {
        let now = at(self.now);
        let c = self.pods[pod]
            .containers
            .iter_mut()
            .find(|c| c.exit.is_none())
            .unwrap();
        c.exit = Some(Exit {
            code,
            reason: "Error".into(),
            at: now,
        });
    }

    fn restart(&mut self, pod: usize) {
        let p = &mut self.pods[pod];
        let id = format!("{}c{}", p.uid, p.containers.len());
        p.containers.push(ObservedContainer {
            id,
            restarts: p.containers.len() as i32,
            created_at: at(self.now),
            exit: None,
        });
    }

    /// Runs until nothing changes: stopped containers exit with 137 and their kubelet restarts
    /// them.
    fn settle(&mut self) -> Vec<String> {
        let mut stopped = Vec::new();
        for _ in 0..10 {
            self.now += 2;
            let plan = self.pass();
            for s in &plan.stop {
                let pod = self.pods.iter().position(|p| p.uid == s.pod_uid).unwrap();
                stopped.push(s.container_id.clone());
                self.exit(pod, 137);
                self.restart(pod);
            }
        }
        stopped
    }

    fn arrived(&self) -> Vec<(i64, Vec<String>)> {
        self.published
            .arrivals
            .iter()
            .map(|a| {
                (
                    a.attempt,
                    a.pods.iter().map(|p| p.container_id.clone()).collect(),
                )
            })
            .collect()
    }

    fn reported(&self) -> Vec<(&str, i64, ReportKind, i32)> {
        self.published
            .reports
            .iter()
            .map(|r| (r.container_id.as_str(), r.attempt, r.kind, r.exit_code))
            .collect()
    }
}

#[test]
fn an_order_stops_exactly_what_is_released_for_an_older_attempt() {
    let mut n = Node::with(2);
    n.settle();
    assert!(
        n.published.arrivals.is_empty(),
        "the first start is not worth a write"
    );
    n.order(2, Some(n.now));
    assert_eq!(n.settle(), ["p0c0", "p1c0"]);
    assert_eq!(
        n.reported(),
        [("p0c0", 1, Stopped, 137), ("p1c0", 1, Stopped, 137)]
    );
    assert_eq!(
        n.arrived(),
        [(2, vec!["p0c1".to_owned(), "p1c1".to_owned()])]
    );
}

#[test]
fn a_container_that_has_restarted_by_its_own_rule_is_not_stopped_again() {
    for restart_before_order in [true, false] {
        let mut n = Node::with(2);
        n.settle();
        n.exit(0, 7);
        let failed_at = n.now;
        if restart_before_order {
            n.restart(0);
            n.settle();
            n.order(2, Some(failed_at));
        } else {
            n.order(2, Some(failed_at));
            n.pass();
            n.restart(0);
        }
        assert_eq!(
            n.settle(),
            ["p1c0"],
            "restart before order: {restart_before_order}"
        );
        assert_eq!(
            n.arrived(),
            [(2, vec!["p0c1".to_owned(), "p1c1".to_owned()])]
        );
        assert!(n.reported().contains(&("p0c0", 1, Exited, 7)));
    }
}

#[test]
fn if_all_members_fail_together_no_container_is_stopped() {
    let mut n = Node::with(3);
    n.settle();
    for pod in 0..3 {
        n.exit(pod, 1);
        n.restart(pod);
    }
    let failed_at = n.now;
    n.order(2, Some(failed_at));
    assert!(n.settle().is_empty());
    assert_eq!(n.arrived()[0].1, ["p0c1", "p1c1", "p2c1"]);
}

#[test]
fn a_container_that_restarted_alone_long_ago_takes_part_in_the_next_restart() {
    let mut n = Node::with(1);
    n.settle();
    n.exit(0, 9);
    n.restart(0);
    n.settle();
    n.now += 600;
    n.order_after(2, Some(n.now), 1);
    assert_eq!(n.settle(), ["p0c1"]);
}

#[test]
fn a_container_that_restarted_alone_a_moment_ago_takes_part_in_the_next_restart() {
    let mut n = Node::with(1);
    n.settle();
    n.exit(0, 9);
    n.restart(0);
    n.settle();
    n.now += 10;
    n.order_after(2, Some(n.now), 1);
    assert_eq!(n.settle(), ["p0c1"]);
}

#[test]
fn a_container_started_after_the_order_is_not_stopped_however_long_its_back_off_was() {
    let mut n = Node::with(2);
    n.settle();
    n.exit(0, 9);
    n.now += 300;
    // The manager expects the restart that the kubelet's back-off still delays.
    n.order_after(2, Some(n.now), 1);
    n.exceptions(&[("g/0/1", 0)]);
    n.pass();
    n.now += 5;
    n.restart(0);
    assert_eq!(n.settle(), ["p1c0"]);
    assert_eq!(
        n.arrived(),
        [(2, vec!["p0c1".to_owned(), "p1c1".to_owned()])]
    );
}

#[test]
fn clocks_that_are_an_hour_off_change_nothing() {
    for off in [-3600, 3600] {
        let mut n = Node::with(2);
        n.settle();
        n.exit(0, 7);
        n.restart(0);
        n.settle();
        n.order(2, Some(n.now + off));
        assert_eq!(n.settle(), ["p1c0"], "{off} s");
    }
}

#[test]
fn restarts_that_were_seen_of_some_members_only_hold_for_them() {
    let mut n = Node::with(2);
    for pod in 0..2 {
        n.exit(pod, 9);
        n.restart(pod);
    }
    n.records = Records::default();
    n.order_after(2, Some(n.now), 0);
    n.exceptions(&[("g/0/1", 1)]);
    assert_eq!(n.settle(), ["p1c1"]);
}

#[test]
fn a_crash_of_the_agent_between_its_steps_changes_nothing() {
    let mut n = Node::with(2);
    n.settle();
    n.order(2, Some(n.now));
    n.now += 1;
    let first = n.pass();
    assert_eq!(first.stop.len(), 2);
    // It crashed after stopping one of two containers, and reads its persisted records.
    n.exit(0, 137);
    n.restart(0);
    assert_eq!(n.settle(), ["p1c0"]);
    assert_eq!(n.arrived()[0].1, ["p0c1", "p1c1"]);
}

#[test]
fn one_write_reports_all_arrivals_unless_a_member_hangs() {
    let mut n = Node::with(2);
    n.settle();
    n.order(2, Some(n.now));
    n.now += 1;
    n.pass();
    n.exit(0, 137);
    n.restart(0);
    let plan = n.pass();
    assert!(n.published.arrivals.is_empty(), "waits for its neighbour");
    assert_eq!(plan.wake_after, Some(Duration::from_secs(1)));
    n.now += 1;
    n.pass();
    assert_eq!(n.arrived(), [(2, vec!["p0c1".to_owned()])]);
}

#[test]
fn a_settled_node_writes_nothing() {
    let mut n = Node::with(2);
    n.settle();
    n.order(2, Some(n.now));
    n.settle();
    n.now += 100;
    assert_eq!(n.pass(), NodePlan::default());
}

#[test]
fn a_container_that_the_kubelet_removed_is_still_reported() {
    let mut n = Node::with(1);
    n.settle();
    n.pods[0].containers.clear();
    n.restart(0);
    n.pods[0].containers[0].id = "p0c1".into();
    n.pass();
    assert_eq!(n.reported(), [("p0c0", 1, Exited, 137)]);
    assert_eq!(n.published.reports[0].reason, "ContainerStatusUnknown");
}

#[test]
fn the_true_code_of_a_container_that_ended_before_the_kill_is_kept() {
    let mut n = Node::with(1);
    n.settle();
    n.order(2, Some(n.now));
    n.now += 1;
    assert_eq!(n.pass().stop.len(), 1);
    n.exit(0, 42);
    n.pass();
    assert_eq!(n.reported(), [("p0c0", 1, Exited, 42)]);
}

#[test]
fn a_new_pod_runs_at_its_own_attempt_although_the_order_is_not_there_yet() {
    let mut n = Node::with(1);
    n.pods[0].attempt = 3;
    n.settle();
    n.exit(0, 5);
    n.pass();
    assert_eq!(n.reported(), [("p0c0", 3, Exited, 5)]);
}

#[test]
fn reports_are_bounded_and_the_newest_stay() {
    let mut n = Node::with(1);
    for _ in 0..70 {
        n.now += 1;
        n.pass();
        n.exit(0, 1);
        n.now += 1;
        n.pass();
        n.restart(0);
    }
    assert_eq!(n.published.reports.len(), PAST_REPORTS);
    assert_eq!(n.published.reports.last().unwrap().container_id, "p0c69");
}

#[test]
fn pods_that_restart_with_new_pods_are_left_to_the_manager() {
    let mut n = Node::with(2);
    n.settle();
    n.order(2, Some(n.now));
    for o in n.orders.values_mut().flat_map(|o| &mut o.domains) {
        o.members = vec!["g/0/1".into()];
    }
    assert_eq!(n.settle(), ["p1c0"]);
}

#[test]
fn domains_are_distinguished_by_workload() {
    let mut n = Node::with(1);
    n.settle();
    n.order(2, Some(n.now));
    let (_, order) = n.orders.pop_first().unwrap();
    let another = (String::new(), "another".into());
    n.orders.insert(another, order);
    assert!(n.settle().is_empty());
}

#[test]
fn if_the_kubelet_restarts_whole_pods_an_order_stops_all_containers_at_once() {
    let mut n = Node::with(1);
    let sidecar = |id: &str, created: i64| ObservedContainer {
        id: id.into(),
        restarts: 0,
        created_at: at(created),
        exit: None,
    };
    n.pods[0].restarts_whole = true;
    n.pods[0].others = [("sidecar".to_owned(), vec![sidecar("s0", 0)])].into();
    n.settle();
    n.order(2, Some(n.now));
    n.now += 1;
    let ids = |plan: NodePlan| {
        plan.stop
            .into_iter()
            .map(|s| s.container_id)
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(n.pass()), ["p0c0", "s0"]);
    // The kubelet restarts the sidecar before the training container has ended.
    n.now += 1;
    n.pods[0].others = [("sidecar".to_owned(), vec![sidecar("s1", n.now)])].into();
    assert_eq!(ids(n.pass()), ["p0c0"]);
}

#[test]
fn an_agent_without_records_repeats_no_report_and_stops_only_older_containers() {
    let mut n = Node::with(1);
    n.settle();
    n.exit(0, 7);
    n.restart(0);
    n.order(2, Some(n.now));
    n.settle();
    let reported = n.published.reports.len();
    n.records = Records::from_published(&n.published);
    n.now += 600;
    n.pass();
    assert_eq!(n.published.reports.len(), reported);
    n.records = Records::from_published(&n.published);
    n.now += 600;
    n.order_after(3, Some(n.now), 1);
    assert_eq!(n.settle(), ["p0c1"]);
}

#[test]
fn all_exits_found_in_one_pass_are_reported_and_kept_while_their_pods_exist() {
    for supervised in [false, true] {
        let mut n = Node::with(100);
        n.pass();
        for pod in 0..100 {
            let code = if pod == 0 { 42 } else { 0 };
            if supervised {
                n.pods[pod].supervised = true;
                n.pods[pod].supervisor = Some(SupervisorState {
                    exit: Some(ChildEnd {
                        attempt: 1,
                        at: at(n.now),
                        code,
                        reason: "Error".into(),
                        message: String::new(),
                    }),
                    ..SupervisorState::default()
                });
            } else {
                n.exit(pod, code);
            }
        }
        n.pass();
        assert_eq!(n.reported().len(), 100, "supervised: {supervised}");
        assert_eq!(n.reported()[0], ("p0c0", 1, Exited, 42));
        n.pods.truncate(1);
        n.pass();
        assert_eq!(n.reported().len(), PAST_REPORTS, "the rest is history");
        assert_eq!(n.reported()[0], ("p0c0", 1, Exited, 42));
    }
}

#[test]
fn a_pod_with_copied_labels_in_another_namespace_is_no_member() {
    let mut node = Node::with(2);
    for pod in &mut node.pods {
        pod.supervised = true;
        pod.member = Some(Member::new("g", 0, 0));
        pod.supervisor = Some(SupervisorState {
            held: Some(1),
            ..SupervisorState::default()
        });
    }
    node.pods[1].namespace = "another".into();
    node.pods[1].supervisor = Some(SupervisorState {
        held: Some(0),
        ..SupervisorState::default()
    });
    let plan = node.pass();
    assert_eq!(plan.messages, [], "the copy is not held");
    let arrivals = node.published.arrivals.clone();
    assert_eq!(arrivals.len(), 1, "at once, without waiting for the copy");
    assert_eq!(arrivals[0].pods[0].pod_uid, "p0");
    for order in node.orders.values_mut().flat_map(|o| &mut o.domains) {
        order.released_attempt = 1;
    }
    let told: Vec<String> = node
        .pass()
        .messages
        .into_iter()
        .map(|t| t.pod_uid)
        .collect();
    assert_eq!(told, ["p0"]);
    assert_eq!(node.published.arrivals, arrivals);
}

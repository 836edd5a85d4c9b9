//! An agent that has lost its records reconstructs them from its reports.

use super::*;

fn forget(node: &mut Node) {
    node.records = Records::from_published(&node.published);
}

#[test]
fn an_agent_without_records_spares_containers_started_after_a_reported_failure() {
    let mut n = Node::with(2);
    n.settle();
    n.exit(0, 7);
    n.pass();
    let failed_at = n.now;
    n.restart(0);
    forget(&mut n);
    n.settle();
    n.order(2, Some(failed_at));
    assert_eq!(n.settle(), ["p1c0"]);
    assert_eq!(
        n.reported(),
        [("p0c0", 1, Exited, 7), ("p1c0", 1, Stopped, 137)]
    );
}

#[test]
fn an_agent_without_records_keeps_the_reported_attempt_of_a_container() {
    let mut n = Node::with(2);
    n.settle();
    n.order(2, Some(n.now));
    n.settle();
    let behind = n.orders.clone();
    n.order_after(3, Some(n.now), 1);
    n.settle();
    assert_eq!(n.arrived()[0].0, 3);
    forget(&mut n);
    // Its watch begins at a lagging server.
    let present = std::mem::replace(&mut n.orders, behind);
    n.settle();
    n.orders = present;
    assert!(n.settle().is_empty());
    n.order_after(4, Some(n.now), 2);
    assert_eq!(n.settle(), ["p0c2", "p1c2"]);
}

#[test]
fn an_agent_that_forgets_lets_no_child_begin_in_the_attempt_in_which_one_has_failed() {
    for container_ends in [false, true] {
        let mut n = Node::with(1);
        n.pods[0].supervised = true;
        for order in n.orders.values_mut().flat_map(|o| &mut o.domains) {
            order.released_attempt = 1;
        }
        n.pods[0].supervisor = Some(SupervisorState {
            exit: Some(ChildEnd {
                attempt: 1,
                at: at(n.now),
                code: 7,
                reason: "Error".into(),
                message: String::new(),
            }),
            ..SupervisorState::default()
        });
        n.pass();
        if container_ends {
            n.exit(0, 137);
            n.pass();
        }
        assert_eq!(n.reported()[0], ("p0c0", 1, Exited, 7));
        forget(&mut n);
        if !container_ends {
            n.exit(0, 137);
        }
        n.restart(0);
        n.pods[0].supervisor = Some(SupervisorState {
            held: Some(0),
            ..SupervisorState::default()
        });
        let plan = n.pass();
        assert!(
            plan.messages.is_empty(),
            "{container_ends}: {:?}",
            plan.messages
        );
        n.order(2, Some(n.now));
        let plan = n.pass();
        assert_eq!(
            plan.messages[0].command,
            SupervisorCommand::Hold { attempt: 2 }
        );
    }
}

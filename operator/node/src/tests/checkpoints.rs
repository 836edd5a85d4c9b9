//! Answers to requests for checkpoints.

use lockstep_api::restart_order::{SavePolicyOrder, SaveRequestOrder};
use lockstep_api::workload::CheckpointSignal;

use super::*;
use crate::{ChildReply, Saved};

/// A node with supervised members of a gang of this size, which run attempt 1 and are asked.
fn asked(members: i32, world: i32) -> Node {
    let mut node = Node::with(members);
    for pod in &mut node.pods {
        pod.supervised = true;
        pod.supervisor = Some(SupervisorState {
            running: Some(1),
            takes_requests: true,
            ..SupervisorState::default()
        });
    }
    node.pass();
    let order = order(&mut node);
    order.world = world;
    order.checkpoint = Some(SavePolicyOrder {
        signal: Some(CheckpointSignal::Usr1),
        ..SavePolicyOrder::default()
    });
    request(&mut node, Some("a"));
    node
}

fn order(node: &mut Node) -> &mut DomainOrder {
    let mut orders = node.orders.values_mut();
    orders.next().unwrap().domains.first_mut().unwrap()
}

fn request(node: &mut Node, id: Option<&str>) {
    order(node).request = id.map(request_of);
}

fn request_of(id: &str) -> SaveRequestOrder {
    SaveRequestOrder {
        id: id.into(),
        ..SaveRequestOrder::default()
    }
}

fn answers(node: &mut Node, pod: usize, id: &str, saved: Saved) {
    if let Some(state) = &mut node.pods[pod].supervisor {
        state.reply = Some(ChildReply {
            attempt: 1,
            request: request_of(id),
            saved,
        });
    }
}

fn published(node: &Node) -> Vec<(&str, &str, Option<i64>)> {
    let list = node.published.checkpoints.iter();
    list.map(|a| (&*a.pod_uid, &*a.id, a.saved)).collect()
}

fn commands(plan: &NodePlan) -> Vec<&SupervisorCommand> {
    plan.messages.iter().map(|m| &m.command).collect()
}

#[test]
fn each_member_is_asked_until_its_supervisor_confirms() {
    let mut node = asked(2, 2);
    let plan = node.pass();
    assert!(matches!(
        commands(&plan)[..],
        [SupervisorCommand::Checkpoint { attempt: 1, request }, _] if request.id == "a"
    ));
    answers(&mut node, 0, "a", Saved::NotYet);
    answers(&mut node, 1, "of another request", Saved::NotYet);
    assert_eq!(node.pass().messages.len(), 1);
    answers(&mut node, 1, "a", Saved::NotYet);
    let plan = node.pass();
    assert_eq!((plan.messages, plan.status), (vec![], None));
    // An eviction has joined the request.
    let order = order(&mut node);
    order.request.as_mut().unwrap().reason = "Eviction".into();
    assert_eq!(node.pass().messages.len(), 2, "another reason");
}

#[test]
fn the_first_save_of_a_domain_is_published_at_once_and_no_further_one() {
    let mut node = asked(3, 5000);
    for pod in 0..3 {
        answers(&mut node, pod, "a", Saved::NotYet);
    }
    answers(&mut node, 1, "a", Saved::Step(7));
    assert_eq!(node.pass().slot, Duration::ZERO);
    assert_eq!(published(&node), [("p1", "a", Some(7))]);
    answers(&mut node, 0, "a", Saved::Step(7));
    answers(&mut node, 2, "a", Saved::Unsupported);
    assert_eq!(node.pass().status, None);
    request(&mut node, None);
    assert_eq!(node.pass().status, None, "no reason to publish");
    request(&mut node, Some("b"));
    answers(&mut node, 2, "b", Saved::Step(9));
    node.pass();
    assert_eq!(published(&node), [("p2", "b", Some(9))]);
}

#[test]
fn supervisors_that_cannot_ask_are_reported_in_the_slot_of_their_node() {
    let mut node = asked(2, 5000);
    answers(&mut node, 0, "a", Saved::Unsupported);
    if let Some(old) = &mut node.pods[1].supervisor {
        old.takes_requests = false;
    }
    let plan = node.pass();
    assert_eq!(plan.messages, [], "an old supervisor gets no message");
    assert!(!plan.slot.is_zero());
    assert_eq!(published(&node), [("p0", "a", None), ("p1", "a", None)]);
    node.pods[0].supervisor = None;
    assert_eq!(node.pass().status, None, "published answers stay");
}

#[test]
fn ends_that_answer_a_request_wait_for_the_slot_and_crashes_do_not() {
    for (code, at_once) in [
        (0, false),
        (143, false),
        (138, false),
        (1, true),
        (137, true),
    ] {
        let mut node = asked(1, 5000);
        node.pods[0].supervisor = Some(SupervisorState {
            exit: Some(ChildEnd {
                attempt: 1,
                at: at(2),
                code,
                reason: "Error".into(),
                message: String::new(),
            }),
            takes_requests: true,
            ..SupervisorState::default()
        });
        assert_eq!(node.pass().slot.is_zero(), at_once, "{code}");
        assert_eq!(node.reported().len(), 1);
    }
}

#[test]
fn stop_signals_are_passed_on_when_the_manager_stops_or_replaces_the_pod() {
    let stop = SupervisorCommand::Stop { attempt: 1 };
    let says = |node: &mut Node| node.pass().messages.pop().map(|m| m.command);
    let mut node = asked(1, 1);
    order(&mut node).stopping = true;
    assert_eq!(says(&mut node), Some(stop.clone()));
    if let Some(state) = &mut node.pods[0].supervisor {
        state.passes_stops = 1;
    }
    assert_eq!(says(&mut node), None);

    let mut node = asked(1, 1);
    order(&mut node).replaced_pods.push("p0".into());
    assert_eq!(says(&mut node), Some(stop.clone()), "at this attempt");
    order(&mut node).attempt = 2;
    assert_eq!(
        says(&mut node),
        Some(stop.clone()),
        "before the release of the next"
    );
    order(&mut node).released_attempt = 2;
    let hold = SupervisorCommand::Hold { attempt: 2 };
    assert_eq!(says(&mut node), Some(hold));
    let mut node = asked(1, 1);
    order(&mut node).attempt = 2;
    order(&mut node).members.clear();
    assert_eq!(says(&mut node), Some(stop), "it does not restart in place");
}

//! A slow control plane makes restarts slow, but does not cause new pods.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::{Node, Pod};
use lockstep_api::NodeAgent;
use lockstep_api::workload::Phase;
use lockstep_sim::clock::api_time;
use lockstep_sim::pods::{condition, leaving, node_of};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::json;

use super::barrier::denied;

/// More than the default deadline of one minute.
const SLOW: TimeDelta = TimeDelta::seconds(90);

/// Eight running members on four nodes, with deadlines of minutes.
fn running(supervised: bool) -> Solo {
    let mut w = if supervised {
        Solo::supervised(gang_with(
            8,
            &json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}}),
        ))
    } else {
        Solo::new(gang(8))
    };
    w.settle();
    w.patience = TimeDelta::seconds(400);
    w
}

/// A supervised gang of eight whose members may take a minute to start.
fn impatient() -> Solo {
    let rules = json!([{"name": "bad", "action": "RecreateGang",
        "match": {"exitCodes": {"operator": "In", "values": [9]}}}]);
    let more = json!({"failurePolicy": {"startDeadlineSeconds": 60, "rules": rules}});
    let mut w = Solo::supervised(gang_with(8, &more));
    w.patience = TimeDelta::seconds(400);
    // Agents publish their capabilities first.
    for node in w.node_names() {
        w.capacity(&node, 0);
    }
    w.settle();
    w
}

/// There is capacity on four nodes, and its pods are created.
fn starts(w: &mut Solo) {
    for node in w.node_names() {
        w.capacity(&node, 2);
    }
    w.until("its pods are made", |w| w.pods().len() == 8);
}

/// Members whose pod is terminating or has not started.
fn being_replaced(w: &Solo, before: &BTreeSet<String>) -> usize {
    let is_at_barrier = |p: &Pod| {
        let old = p.metadata.uid.as_ref().is_some_and(|u| before.contains(u));
        let ready = condition(p, "Ready").is_some_and(|(status, _)| status == "True");
        !leaving(p) && (old || ready)
    };
    8 - w.pods().iter().filter(|p| is_at_barrier(p)).count()
}

#[test]
fn updates_slower_than_the_deadline_recreate_no_member() {
    for supervised in [false, true] {
        let mut w = running(supervised);
        let before = w.uids();
        w.faults(|f| f.news_take = SLOW);
        w.exit("g", 3, 1);
        w.settle();
        let s = w.status();
        assert_eq!(
            w.uids(),
            before,
            "supervised: {supervised}\n{}",
            w.story(30)
        );
        assert_eq!((s.phase, s.attempt), (Some(Phase::Running), 2));
        assert_eq!((s.restarts.in_place, s.restarts.recreated), (1, 0));
    }
}

#[test]
fn no_member_is_replaced_while_members_keep_arriving() {
    for supervised in [false, true] {
        let mut w = running(supervised);
        let before = w.uids();
        for (node, seconds) in [("n0", 40), ("n1", 80), ("n2", 120), ("n3", 160)] {
            w.fault(node, |f| f.news_take = TimeDelta::seconds(seconds));
        }
        w.exit("g", 0, 1);
        w.settle();
        assert_eq!(
            w.uids(),
            before,
            "supervised: {supervised}\n{}",
            w.story(30)
        );
        assert_eq!(w.status().restarts.recreated, 0);
    }
}

#[test]
fn a_member_that_the_agent_reports_as_stuck_is_replaced_at_the_deadline() {
    let mut w = running(false);
    let stuck = w.pod("g", 2).metadata.uid.unwrap();
    let node = w.node_of("g", 2);
    w.fault(&node, |f| f.hangs = true);
    w.exit("g", 7, 1);
    w.rounds(55);
    assert!(w.uids().values().any(|uid| *uid == stuck));
    w.rounds(15);
    w.settle();
    assert!(w.uids().values().all(|uid| *uid != stuck));
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn what_an_agent_says_of_a_member_counts_when_it_is_heard() {
    let mut w = running(false);
    let stuck = w.pod("g", 2).metadata.uid.unwrap();
    let node = w.node_of("g", 2);
    w.fault(&node, |f| (f.hangs, f.news_take) = (true, SLOW));
    w.exit("g", 7, 1);
    // The report is made after one minute, and takes a minute and a half to arrive.
    w.rounds(145);
    assert!(w.uids().values().any(|uid| *uid == stuck), "{}", w.story(9));
    w.settle();
    assert!(w.uids().values().all(|uid| *uid != stuck));
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_member_whose_agent_is_gone_is_replaced_at_the_deadline() {
    for supervised in [false, true] {
        let mut w = running(supervised);
        let stuck = w.pod("g", 2).metadata.uid.unwrap();
        let node = w.node_of("g", 2);
        w.fault(&node, |f| f.silent_agent = true);
        w.exit("g", 7, 1);
        w.rounds(5);
        w.fault(&node, |f| f.no_agent = true);
        w.rounds(50);
        assert!(w.uids().values().any(|uid| *uid == stuck));
        w.settle();
        assert!(w.uids().values().all(|uid| *uid != stuck), "{supervised}");
        assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(20));
    }
}

#[test]
fn members_of_a_ready_but_silent_agent_are_replaced_eventually() {
    let mut w = running(true);
    let stuck = w.pod("g", 2).metadata.uid.unwrap();
    let node = w.node_of("g", 2);
    w.fault(&node, |f| f.silent_agent = true);
    w.exit("g", 7, 1);
    w.rounds(280);
    assert!(w.uids().values().any(|uid| *uid == stuck));
    w.settle();
    assert!(w.uids().values().all(|uid| *uid != stuck));
    w.fault(&node, |f| f.silent_agent = false);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn members_of_a_node_that_is_not_ready_are_not_replaced_at_the_deadline() {
    let mut spec = gang(8);
    spec["failurePolicy"]["nodeLostSeconds"] = json!(1000);
    let mut w = Solo::new(spec);
    w.settle();
    let before = w.uids();
    let node = w.node_of("g", 2);
    w.fault(&node, |f| f.silent_agent = true);
    w.exit("g", 7, 1);
    w.rounds(5);
    w.lose(&node);
    w.rounds(400);
    assert_eq!(w.uids(), before, "{}", w.story(20));
    w.fault(&node, |f| (f.lost, f.silent_agent) = (false, false));
    w.settle();
    assert_eq!(w.uids(), before, "{}", w.story(20));
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn of_a_domain_a_bounded_share_is_replaced_at_a_time() {
    let mut w = running(false);
    let before: BTreeSet<String> = w.uids().into_values().collect();
    w.faults(|f| f.hangs = true);
    w.exit("g", 7, 1);
    let mut replaced = BTreeSet::new();
    for _ in 0..400 {
        w.rounds(1);
        let now = being_replaced(&w, &before);
        assert!(now <= 1, "{now} at once:\n{}", w.story(30));
        replaced.extend(w.uids().into_values().filter(|uid| !before.contains(uid)));
    }
    assert_eq!(replaced.len(), 7, "all that hung have new pods");
    assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(20));
}

#[test]
fn a_first_start_whose_news_are_late_keeps_its_nodes() {
    let mut w = impatient();
    w.faults(|f| f.news_take = SLOW);
    starts(&mut w);
    let before = w.uids();
    w.settle();
    let s = w.status();
    assert_eq!(w.uids(), before, "{}", w.story(30));
    assert_eq!(s.phase, Some(Phase::Running), "{}", w.story(30));
    assert!(s.gangs.iter().all(|g| g.avoid.is_empty()), "{:?}", s.gangs);
}

#[test]
fn no_member_of_a_first_start_is_replaced_while_members_arrive() {
    let mut w = impatient();
    for (node, seconds) in [("n0", 150), ("n1", 330), ("n2", 500), ("n3", 700)] {
        w.fault(node, |f| f.news_take = TimeDelta::seconds(seconds));
    }
    starts(&mut w);
    let before = w.uids();
    w.settle();
    assert_eq!(w.uids(), before, "{}", w.story(30));
    assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(30));
}

#[test]
fn a_member_without_supervisor_at_a_first_start_is_replaced_at_its_deadline() {
    let mut w = impatient();
    // Its agent works, but its supervisors receive nothing.
    w.fault("n0", |f| f.unkillable = true);
    starts(&mut w);
    w.rounds(55);
    assert_eq!(w.status().gangs[0].placement_tries, 0, "{}", w.story(20));
    w.rounds(20);
    assert_eq!(w.status().gangs[0].placement_tries, 1, "{}", w.story(20));
    w.capacity("n3", 8);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn members_of_an_agent_silent_during_a_first_start_are_replaced_eventually() {
    let mut w = impatient();
    w.fault("n0", |f| f.silent_agent = true);
    starts(&mut w);
    w.rounds(280);
    assert_eq!(w.status().gangs[0].placement_tries, 0, "{}", w.story(20));
    w.rounds(40);
    let written = w.written();
    let mut backoffs = written.iter().flat_map(|s| &s.gangs);
    let why = backoffs
        .find_map(|g| Some(g.backoff.as_ref()?.message.clone()))
        .expect("it backed off");
    let says = "nothing was heard of the supervisor within 5 min (5 times";
    assert!(why.contains(says), "{why}");
}

#[test]
fn of_a_recreated_gang_a_bounded_share_is_placed_elsewhere() {
    let mut w = impatient();
    for node in w.node_names() {
        w.capacity(&node, 8);
    }
    w.settle();
    let home = w.node_of("g", 0);
    assert!((1..8).all(|i| w.node_of("g", i) == home));
    w.exit("g", 7, 9);
    let is_anew = |w: &mut Solo| {
        let pods = w.pods();
        pods.iter().filter(|p| !leaving(p)).count() == 8 && w.status().attempt == 2
    };
    w.fault(&home, |f| f.starts_nothing = true);
    w.until("all have new pods", is_anew);
    let first: BTreeSet<String> = w.uids().into_values().collect();
    w.rounds(50);
    let mut replaced = BTreeSet::new();
    for _ in 0..200 {
        w.rounds(1);
        let up = |p: &&Pod| {
            let uid = p.metadata.uid.as_ref();
            let anew = uid.is_some_and(|u| !first.contains(u));
            anew && !leaving(p) && node_of(p).is_some_and(|n| n != home)
        };
        let gone = first.len() - w.uids().values().filter(|u| first.contains(*u)).count();
        let up = w.pods().iter().filter(up).count();
        assert!(
            gone <= up + 1,
            "{gone} of which {up} are up:\n{}",
            w.story(30)
        );
        replaced.extend(w.uids().into_values().filter(|u| !first.contains(u)));
    }
    assert_eq!(replaced.len(), 8, "all of them have come up elsewhere");
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(20));
    assert_eq!(w.status().attempt, 2);
}

/// Independent members that may take a minute to start, without capacity yet.
fn alone(members: i32) -> Solo {
    let more =
        json!({"scheduling": {"policy": "Basic"}, "failurePolicy": {"startDeadlineSeconds": 60}});
    let mut w = Solo::new(gang_with(members, &more));
    for node in w.node_names() {
        w.capacity(&node, 0);
    }
    w.settle();
    w
}

fn is_any_on(w: &Solo, node: &str) -> bool {
    w.pods().iter().any(|p| node_of(p) == Some(node))
}

#[test]
fn a_basic_member_moves_at_its_deadline_regardless_of_other_starting_members() {
    let mut w = alone(2);
    for node in ["n0", "n1"] {
        w.fault(node, |f| f.starts_nothing = true);
    }
    w.capacity("n0", 1);
    w.until("the first is made", |w| w.pods().len() == 1);
    w.rounds(40);
    w.capacity("n1", 1);
    w.until("the second is made", |w| w.pods().len() == 2);
    w.capacity("n2", 2);
    w.rounds(10);
    assert!(!is_any_on(&w, "n2"), "{}", w.story(20));
    w.rounds(30);
    assert!(is_any_on(&w, "n2"), "{}", w.story(20));
}

#[test]
fn a_member_that_stands_alone_goes_elsewhere_though_the_pod_of_another_is_refused() {
    let mut w = alone(4);
    w.store().admission.quota = Some(3);
    w.fault("n0", |f| f.starts_nothing = true);
    w.capacity("n0", 4);
    w.until("as many as may be are made", |w| w.pods().len() == 3);
    w.capacity("n1", 4);
    w.rounds(200);
    assert!(is_any_on(&w, "n1"), "{}", w.story(20));
}

#[test]
fn members_whose_node_was_silent_for_a_moment_keep_their_pods() {
    for fails_meanwhile in [true, false] {
        let mut spec = gang(8);
        spec["failurePolicy"]["nodeLostSeconds"] = json!(1000);
        let mut w = Solo::new(spec);
        w.settle();
        let before = w.uids();
        let node = w.node_of("g", 2);
        w.lose(&node);
        w.rounds(5);
        if fails_meanwhile {
            w.exit("g", 7, 1);
            w.rounds(5);
        }
        // Pods are shown as ready some seconds after their node.
        w.fault(&node, |f| (f.lost, f.no_agent) = (false, true));
        w.rounds(3);
        if !fails_meanwhile {
            w.exit("g", 7, 1);
            w.rounds(3);
        }
        w.fault(&node, |f| f.no_agent = false);
        w.settle();
        assert_eq!(w.uids(), before, "{fails_meanwhile}\n{}", w.story(30));
        let s = w.status();
        assert_eq!((s.phase, s.restarts.in_place), (Some(Phase::Running), 1));
    }
}

#[test]
fn a_word_of_lateness_does_not_outlive_an_arrival_whose_news_are_under_way() {
    let mut w = running(false);
    let before = w.uids();
    let node = w.node_of("g", 2);
    w.fault(&node, |f| f.hangs = true);
    w.exit("g", 7, 1);
    w.rounds(35);
    w.fault(&node, |f| (f.hangs, f.news_take) = (false, SLOW));
    w.settle();
    assert_eq!(w.uids(), before, "{}", w.story(30));
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn members_that_have_arrived_keep_their_pods_while_their_agents_object_is_gone() {
    for supervised in [false, true] {
        let mut w = running(supervised);
        let before = w.uids();
        let (collected, slow) = (w.node_of("g", 2), w.node_of("g", 4));
        assert_ne!(collected, slow);
        w.fault(&slow, |f| f.silent_agent = true);
        w.exit("g", 7, 1);
        w.rounds(10);
        let key = Key::new("", &collected);
        let object: NodeAgent = w.get(&key).unwrap();
        w.delete(WatchedKind::NodeAgent, &key);
        w.rounds(100);
        // The agent has listed the runtime.
        w.create(&NodeAgent::new(&collected, object.spec));
        w.cluster
            .edit::<NodeAgent>(&key, |agent| agent.status = object.status);
        w.fault(&slow, |f| f.silent_agent = false);
        w.settle();
        assert_eq!(
            w.uids(),
            before,
            "supervised: {supervised}\n{}",
            w.story(30)
        );
        assert_eq!(w.status().phase, Some(Phase::Running));
    }
}

#[test]
fn a_node_with_a_fast_clock_delays_no_member() {
    let mut w = running(false);
    let stuck = w.pod("g", 2).metadata.uid.unwrap();
    let node = w.node_of("g", 2);
    let ahead = api_time(w.now() + TimeDelta::hours(1));
    w.cluster.edit::<Node>(&Key::new("", &node), |n| {
        let status = n.status.get_or_insert_default();
        for ready in status.conditions.iter_mut().flatten() {
            ready.last_transition_time = Some(ahead.clone());
        }
    });
    w.fault(&node, |f| f.silent_agent = true);
    w.exit("g", 7, 1);
    w.rounds(5);
    w.fault(&node, |f| f.no_agent = true);
    w.rounds(115);
    assert!(
        w.uids().values().all(|uid| *uid != stuck),
        "{}",
        w.story(20)
    );
}

/// Pod status shows a container that the kubelet restarts as waiting until the kubelet reports again.
#[test]
fn no_pod_is_made_beside_an_old_one_whose_container_may_have_restarted_unseen() {
    let mut w = Solo::new(denied(3, &json!([])));
    w.settle();
    let node = w.node_of("g", 2);
    assert_ne!(node, w.node_of("g", 0));
    w.fault(&node, |f| f.cut_off = true);
    let old = w.pod("g", 2).metadata.uid;
    w.edit_pod("g", 2, |pod| {
        let status = pod.status.as_mut().unwrap();
        let container = &mut status.container_statuses.as_mut().unwrap()[0];
        container.state =
            serde_json::from_value(json!({"waiting": {"reason": "RestartingAllContainers"}}))
                .unwrap();
    });
    w.exit("g", 0, 1);
    w.rounds(20);
    let left: Vec<_> = w.pods().into_iter().map(|p| p.metadata.uid).collect();
    assert_eq!(left, [old], "only the pod that may still run");
    w.fault(&node, |f| f.cut_off = false);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

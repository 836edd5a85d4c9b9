//! Moves of running gangs away from nodes with signals.

mod premises;
mod world;

use chrono::TimeDelta;
use lockstep_api::Outlook;
use lockstep_api::condition::reasons;
use lockstep_api::scheduling::MoveTarget;
use lockstep_api::workload::CauseKind::{NodeFaulty, NodeLeaving};
use lockstep_api::workload::MoveOutcome;
use lockstep_model::SnapshotFile;
use lockstep_scheduler::snapshot::scheduling_input;
use lockstep_scheduler::{Memory, SchedulingCycle, schedule};

use world::World;

/// Four nodes of rack `a` and two of rack `b`. Gang `x` runs on `n1` and `n2`.
fn running() -> World {
    let nodes = [
        ("n1", "a"),
        ("n2", "a"),
        ("n3", "a"),
        ("n4", "a"),
        ("n5", "b"),
        ("n6", "b"),
    ];
    let mut world = World::new(&nodes);
    world.gang("x", 10, 2, &["n1", "n2"]);
    world
}

/// [`running`], and `x` moves from `n1`.
fn moving() -> World {
    let mut world = running();
    world.moves("x", NodeLeaving, &["n1"]);
    world
}

fn one(member: i32, node: &str) -> Vec<(i32, String)> {
    vec![(member, node.to_owned())]
}

fn idle(cycle: &SchedulingCycle) -> bool {
    cycle.plan.steps.is_empty()
}

#[test]
fn only_members_on_the_nodes_to_leave_get_a_target() {
    let mut world = moving();
    world.cycle();
    assert_eq!(world.to("x"), Some(one(0, "n3")));
    assert_eq!(
        world.nodes("x"),
        ["n1", "n2"],
        "it runs until it is stopped"
    );
}

#[test]
fn a_target_is_kept_and_costs_no_further_write() {
    let mut world = moving();
    world.cycle();
    let target = world.target("x");
    world.later(100);
    // The search would choose among other nodes now.
    world.gang("y", 10, 1, &["n4"]);
    world.cycle();
    world.later(3600);
    world.memory = Memory::default();
    assert!(idle(&world.cycle()));
    assert_eq!(world.target("x"), target);
}

#[test]
fn a_target_is_not_given_to_a_gang_of_any_priority_even_by_a_new_manager() {
    let mut world = moving();
    world.cycle();
    for restarted in [false, true] {
        if restarted {
            world.memory = Memory::default();
        }
        for node in ["n4", "n5", "n6"] {
            world.foreign(&format!("pod-{node}"), node);
        }
        world.gang("y", 1000, 1, &[]);
        world.edit("y", |gang| gang.group.preempts = false);
        world.cycle();
        assert_eq!(
            (world.to("x"), world.nodes("y")),
            (Some(one(0, "n3")), vec![])
        );
    }
}

#[test]
fn a_gang_ahead_in_the_queue_takes_its_nodes_before_a_move_does() {
    let mut world = moving();
    world.gang("y", 1000, 4, &[]);
    world.cycle();
    assert_eq!(world.nodes("y").len(), 4);
    assert_eq!(
        (world.to("x"), world.reason("x").as_str()),
        (None, reasons::UNSCHEDULABLE)
    );
}

#[test]
fn a_target_whose_node_takes_no_pods_is_sought_anew() {
    let mut world = moving();
    world.cycle();
    world.cordon("n3", true);
    world.cycle();
    assert_eq!(world.to("x"), Some(one(0, "n4")));
    world.outlook("n4", Outlook::Faulty);
    world.cycle();
    assert_eq!(world.to("x"), Some(one(0, "n5")));
    world.foreign("pod", "n5");
    world.cycle();
    assert_eq!(world.to("x"), Some(one(0, "n6")));
    world.foreign("other", "n6");
    world.cycle();
    assert_eq!(
        (world.to("x"), world.reason("x").as_str()),
        (None, reasons::UNSCHEDULABLE)
    );
    world.cordon("n3", false);
    world.cycle();
    assert_eq!(world.to("x"), Some(one(0, "n3")));
}

#[test]
fn a_node_that_joins_the_move_is_left_too() {
    let mut world = moving();
    world.cycle();
    world.moves("x", NodeLeaving, &["n1", "n3"]);
    world.cycle();
    assert_eq!(
        world.to("x"),
        Some(one(0, "n4")),
        "the target has a signal now"
    );
    world.moves("x", NodeLeaving, &["n1", "n2", "n3"]);
    world.cycle();
    assert_eq!(world.to("x").map(|to| to.len()), Some(2));
}

#[test]
fn a_withdrawn_move_gives_its_nodes_back() {
    let mut world = moving();
    world.cycle();
    world.ends("x", MoveOutcome::Withdrawn);
    world.gang("y", 10, 4, &[]);
    world.cycle();
    assert_eq!(world.target("x"), None);
    assert_eq!(world.nodes("y").len(), 4);
}

#[test]
fn a_gang_that_no_domain_can_hold_beside_its_members_moves_as_a_whole() {
    let mut world = running();
    world.rack_required("x");
    for node in ["n3", "n4"] {
        world.foreign(&format!("pod-{node}"), node);
    }
    world.moves("x", NodeLeaving, &["n1"]);
    world.cycle();
    let whole = Some(vec![(0, "n5".to_owned()), (1, "n6".to_owned())]);
    assert_eq!(world.to("x"), whole);
    world.later(10);
    assert!(idle(&world.cycle()));
    world.replaces("x", &[0]);
    world.cycle();
    assert_eq!(
        world.nodes("x"),
        ["n2"],
        "one member alone does not leave the rack"
    );
    let mut world = running();
    world.rack_required("x");
    for node in ["n3", "n4"] {
        world.foreign(&format!("pod-{node}"), node);
    }
    world.moves("x", NodeLeaving, &["n1"]);
    world.cycle();
    world.replaces("x", &[0, 1]);
    world.cycle();
    assert_eq!(world.nodes("x"), ["n5", "n6"]);
}

#[test]
fn nodes_that_the_gang_does_not_leave_count_as_free_for_the_whole_gang() {
    let mut world = World::new(&[("n1", "a"), ("n2", "b"), ("n3", "b")]);
    // Its level was added after its placement, so that it spans racks.
    world.gang("x", 10, 2, &["n1", "n2"]);
    world.rack_required("x");
    world.moves("x", NodeLeaving, &["n1"]);
    world.cycle();
    assert_eq!(world.to("x"), Some(one(0, "n3")));
}

#[test]
fn the_members_move_to_the_target_in_the_cycle_after_the_stop() {
    for restarted in [false, true] {
        let mut world = moving();
        world.cycle();
        if restarted {
            world.memory = Memory::default();
        }
        let before = world.status("x").placement.clone().unwrap().id;
        world.replaces("x", &[0]);
        world.cycle();
        assert_eq!(world.nodes("x"), ["n3", "n2"]);
        assert_ne!(world.status("x").placement.clone().unwrap().id, before);
        world.recovers("x");
        world.cycle();
        assert_eq!(world.to("x"), Some(one(0, "n3")), "the move is still open");
        world.ends("x", MoveOutcome::Moved);
        world.cycle();
        assert_eq!(
            (world.target("x"), world.nodes("x")),
            (None, vec!["n3".to_owned(), "n2".to_owned()])
        );
    }
}

#[test]
fn a_member_whose_target_is_lost_after_the_stop_gets_another_node() {
    let mut world = moving();
    world.cycle();
    world.replaces("x", &[0]);
    world.outlook("n3", Outlook::Faulty);
    world.cycle();
    let nodes = world.nodes("x");
    assert_ne!(nodes[0], "n1");
    world.outlook("n3", Outlook::Healthy);
    world.cycle();
    assert_eq!(world.nodes("x"), nodes, "it does not move again");
}

/// [`moving`] without free nodes, beside a gang of this priority.
fn full(priority: i32) -> World {
    let mut world = moving();
    world.gang("y", priority, 4, &["n3", "n4", "n5", "n6"]);
    world
}

#[test]
fn a_move_that_needs_a_preemption_evicts_nothing_before_the_stop() {
    let mut world = full(1);
    for _ in 0..3 {
        let cycle = world.cycle();
        let target = world.target("x").unwrap();
        assert!(target.preempts && target.permits("move-x") && target.nodes.is_empty());
        assert!(
            world.status("x").preemption.is_none()
                && world
                    .status("y")
                    .conditions
                    .iter()
                    .all(|c| c.type_ != "DisruptionTarget")
        );
        world.later(30);
        drop(cycle);
    }
    world.settings.searches_per_cycle = 0;
    world.cycle();
    assert!(world.target("x").unwrap().preempts, "no search is left");
    world.settings.searches_per_cycle = 4;
    world.replaces("x", &[0]);
    world.cycle();
    assert!(world.status("x").preemption.is_some());
}

#[test]
fn a_move_without_capacity_says_what_is_missing() {
    let mut world = full(10);
    world.cycle();
    let target = world.target("x").unwrap();
    assert_eq!(target.reason, reasons::UNSCHEDULABLE);
    assert!(
        target.message.contains("insufficient nvidia.com/gpu"),
        "{}",
        target.message
    );
    world.later(40);
    assert!(idle(&world.cycle()));
}

/// Gangs `a`, `b`, `c` of one member on `n1`, `n2`, `n3`, which all move.
fn three(nodes: usize) -> World {
    let names: Vec<String> = (1..=nodes).map(|n| format!("n{n}")).collect();
    let nodes: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), "a")).collect();
    let mut world = World::new(&nodes);
    for (gang, node) in [("a", "n1"), ("b", "n2"), ("c", "n3")] {
        world.gang(gang, 10, 1, &[node]);
        world.moves(gang, NodeLeaving, &[node]);
    }
    world
}

/// Gangs whose moves may begin.
fn permitted(world: &World) -> Vec<&'static str> {
    let gangs = ["a", "b", "c"].into_iter();
    gangs.filter(|gang| world.to(gang).is_some()).collect()
}

#[test]
fn moves_wait_for_the_limit_in_the_order_of_their_deadlines_then_priorities() {
    let mut world = three(10);
    let soon = world.now + TimeDelta::minutes(10);
    world.begins_by("c", soon);
    world.edit("b", |gang| gang.group.priority = 11);
    world.cycle();
    assert_eq!(permitted(&world), ["b", "c"]);
    assert_eq!(world.reason("a"), reasons::MOVE_LIMIT_REACHED);
    world.begins_by("a", soon - TimeDelta::minutes(5));
    world.cycle();
    assert_eq!(
        permitted(&world),
        ["b", "c"],
        "moves that may begin keep this right"
    );
    world.replaces("b", &[0]);
    world.cycle();
    world.recovers("b");
    world.cycle();
    assert_eq!(permitted(&world), ["b", "c"], "its move is still open");
    world.ends("b", MoveOutcome::Moved);
    world.cycle();
    assert_eq!(permitted(&world), ["a", "c"]);
}

#[test]
fn a_move_past_its_last_safe_moment_ignores_the_limit_without_a_change() {
    let mut world = three(10);
    world.settings.concurrent_moves = 1;
    for gang in ["b", "c"] {
        world.begins_by(gang, world.now + TimeDelta::seconds(60));
    }
    world.cycle();
    assert_eq!(permitted(&world), ["b"]);
    let wake = world.cycle().plan.wake_after.unwrap();
    assert_eq!(wake.as_secs(), 60);
    world.later(60);
    world.cycle();
    assert_eq!(permitted(&world), ["b", "c"]);
}

#[test]
fn a_move_without_capacity_takes_no_place_of_the_limit() {
    let mut world = three(4);
    world.settings.concurrent_moves = 1;
    world.begins_by("a", world.now + TimeDelta::minutes(10));
    world.edit("a", |gang| gang.group.priority = 9);
    world.cycle();
    assert_eq!(permitted(&world), ["b"]);
    assert_eq!(world.reason("a"), reasons::UNSCHEDULABLE);
}

/// Ten nodes with accelerators, of which so many are Faulty; gang `x` moves from the first.
fn faulty(nodes: usize, count: usize) -> World {
    let names: Vec<String> = (10..10 + nodes).map(|n| format!("n{n}")).collect();
    let all: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), "a")).collect();
    let mut world = World::new(&all);
    world.gang("x", 10, 1, &["n10"]);
    world.moves("x", NodeFaulty, &["n10"]);
    for node in &names[..count] {
        world.outlook(node, Outlook::Faulty);
    }
    world
}

#[test]
fn gangs_move_for_faults_up_to_a_fifth_of_the_nodes_or_two() {
    for (nodes, most) in [(6, 2), (15, 3), (20, 4), (24, 4)] {
        let mut world = faulty(nodes, most);
        let cycle = world.cycle();
        assert!(
            world.to("x").is_some() && !cycle.plan.many_faults,
            "{most} of {nodes}"
        );
        let mut world = faulty(nodes, most + 1);
        let cycle = world.cycle();
        assert!(
            world.to("x").is_none() && cycle.plan.many_faults,
            "{most} + 1 of {nodes}"
        );
        assert_eq!(world.reason("x"), reasons::TOO_MANY_FAULTY_NODES);
        let last = format!("n{}", 10 + most);
        world.outlook(&last, Outlook::Healthy);
        let cycle = world.cycle();
        assert!(
            world.to("x").is_some() && !cycle.plan.many_faults,
            "it opens by itself"
        );
    }
}

#[test]
fn too_many_faults_stop_no_move_for_another_reason() {
    let mut world = faulty(10, 5);
    world.moves("x", NodeLeaving, &["n10"]);
    world.cycle();
    assert!(world.to("x").is_some());
}

#[test]
fn nodes_left_for_faults_count_for_an_hour_each_once() {
    let mut world = faulty(10, 1);
    for (gang, nodes) in [("y", ["n16", "n17"]), ("z", ["n17", "n18"])] {
        world.gang(gang, 10, 1, &["n15"]);
        world.moves(gang, NodeFaulty, &nodes);
        world.ends(gang, MoveOutcome::Moved);
        world.later(60);
    }
    world.cycle();
    assert_eq!(world.reason("x"), reasons::TOO_MANY_FAULTY_NODES);
    let message = world.target("x").unwrap().message;
    assert!(message.contains("1 are Faulty, 3 were left"), "{message}");
    let wake = world.cycle().plan.wake_after.unwrap();
    assert_eq!(wake.as_secs(), 3600 - 120);
    world.later(3600 - 120);
    world.cycle();
    assert!(world.to("x").is_some());
}

#[test]
fn equal_states_lead_to_equal_targets() {
    let decide = || {
        let mut world = three(8);
        world.moves("a", NodeFaulty, &["n1"]);
        world.gang("y", 10, 2, &[]);
        world.cycle();
        let targets = ["a", "b", "c"].map(|gang| world.target(gang));
        (targets, world.nodes("y"))
    };
    assert_eq!(decide(), decide());
}

#[test]
fn the_file_of_a_cluster_leads_to_the_same_targets() {
    let worlds = || {
        let mut guarded = faulty(10, 3);
        guarded.gang("a", 10, 1, &["n15"]);
        guarded.moves("a", NodeLeaving, &["n15"]);
        [three(9), guarded]
    };
    for kept in [false, true] {
        for mut world in worlds() {
            if kept {
                world.cycle();
            }
            let file = world.file();
            let file = SnapshotFile::from_json(&file.to_json().unwrap()).unwrap();
            let input = scheduling_input(&file, Vec::new());
            let replayed = schedule(&input, &mut Memory::default(), &world.settings, world.now);
            world.cycle();
            for gang in replayed.gangs.iter() {
                let parts = |t: MoveTarget| (t.nodes, t.reason);
                let name = &gang.input.workload.name;
                let target = gang.status.move_target.clone();
                assert_eq!(target.map(parts), world.target(name).map(parts), "{name}");
            }
        }
    }
}

//! A kube-scheduler that is slow, which is not one that refuses pods.

use std::collections::BTreeSet;

use lockstep_sim::pods::node_of;
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};

use crate::{HIGH, INSUFFICIENT, LOW, run};

/// Names of the pods of a gang that have existed.
fn note_pods(world: &Gangs, name: &str, seen: &mut BTreeSet<String>) {
    let pods = world.pods_of(name).into_iter();
    seen.extend(pods.filter_map(|pod| pod.metadata.name));
}

#[test]
fn a_gang_keeps_its_nodes_while_kube_scheduler_binds_its_pods_slowly() {
    for a_second in [20, 5] {
        let names: Vec<String> = (1..=10).map(|n| format!("n{n}")).collect();
        let nodes: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 8)).collect();
        let mut world = Gangs::new(&nodes);
        let large = |spec, members| Spec { members, ..spec };
        for name in ["a", "b", "c", "d"] {
            world.gang(name, large(LOW, 20));
        }
        world.settle();
        world.store().attempts_per_turn = Some(a_second);
        world.gang("high", large(HIGH, 80));
        let mut seen = BTreeSet::new();
        let mut placements = BTreeSet::new();
        for _ in 0..120 {
            run(&mut world, 1);
            note_pods(&world, "high", &mut seen);
            placements.extend(world.placement("high").map(|p| p.id));
        }
        assert_eq!(world.running("high"), 80, "{a_second} pods a second");
        assert_eq!(
            (seen.len(), placements.len(), world.preemptions("high")),
            (80, 1, 1),
            "{a_second} pods a second"
        );
    }
}

#[test]
fn a_refusal_from_before_the_end_of_a_termination_does_not_count() {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
    world.gang("a", Spec { members: 1, ..LOW });
    world.decide();
    let first = world.nodes("a").remove(0);
    world.refuse_pods("a", INSUFFICIENT);
    world.foreign("leaving", &first, 0, 1);
    let leaving = Key::new("ml", "leaving");
    world.delete(WatchedKind::Pod, &leaving);
    world.schedule();
    world.later(5);
    world.schedule();
    world.remove(WatchedKind::Pod, &leaving);
    world.schedule();
    // The back-off of kube-scheduler is up to ten seconds.
    world.later(9);
    world.schedule();
    assert_eq!(world.nodes("a"), [first.as_str()]);
    world.later(3);
    world.schedule();
    assert_ne!(world.nodes("a"), [first]);
    let pod = world.pods_of("a").remove(0);
    assert_eq!(node_of(&pod), None);
}

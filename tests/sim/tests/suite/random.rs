//! Failures at random, and then none: everything comes to rest and runs.

use lockstep_api::TrainingWorkload;
use lockstep_api::workload::Phase;
use lockstep_sim::pods::{leaving, node_of};
use lockstep_sim::{Gangs, Key, Spec};

const GANG: Spec = Spec {
    priority: 10,
    members: 3,
    gpus: 1,
};

/// One thing that goes wrong.
fn misfortune(world: &mut Gangs) {
    let node = format!("n{}", world.pick(4));
    let name = ["a", "b"][world.pick(2)];
    let pods = world.pods_of(name);
    match world.pick(5) {
        0 if !pods.is_empty() => {
            let pod = pods[world.pick(pods.len())].clone();
            let code = [1, 137, 42][world.pick(3)];
            world.exit_pod(&pod, code);
        }
        1 if !pods.is_empty() => {
            let pod = Key::of(&pods[world.pick(pods.len())]);
            world.delete(lockstep_sim::WatchedKind::Pod, &pod);
        }
        2 => world.lose(&node),
        3 => world.find(&node),
        _ => {
            let writes = world.pick(4);
            world.crash_after(writes);
        }
    }
}

#[test]
fn two_gangs_with_failures_at_random_come_to_rest_and_run() {
    for seed in 0..12 {
        let mut world = Gangs::with_seed(seed, &[("n0", 2), ("n1", 2), ("n2", 2), ("n3", 2)]);
        world.gang("a", GANG);
        world.gang("b", GANG);
        for _ in 0..40 {
            for _ in 0..40 {
                world.step();
            }
            misfortune(&mut world);
        }
        for node in world.node_names() {
            world.find(&node);
        }
        world.patience = chrono::TimeDelta::seconds(700);
        world.settle();
        for name in ["a", "b"] {
            let status = world.workload(name).status.unwrap_or_default();
            let story = world.story(40);
            assert_eq!(
                status.phase,
                Some(Phase::Running),
                "seed {seed}, {name}: {status:#?}\n{story}"
            );
            assert_eq!(world.running(name), 3, "seed {seed}, {name}");
            assert!(world.is_idle(&Key::new("ml", name)), "seed {seed}, {name}");
        }
        for node in world.node_names() {
            let all = ["a", "b"].map(|name| world.pods_of(name)).concat();
            let here = all
                .iter()
                .filter(|p| node_of(p) == Some(node.as_str()) && !leaving(p));
            assert!(
                here.count() <= 2,
                "seed {seed}: {node} has more than it can hold"
            );
        }
        assert_eq!(world.list::<TrainingWorkload>().len(), 2);
    }
}

//! Random failures, followed by none: everything comes to rest and runs.

use std::collections::BTreeMap;

use lockstep_api::workload::{Phase, TrainingWorkloadStatus};
use lockstep_sim::api::Verb;
use lockstep_sim::kueue::ALWAYS_WATCHED;
use lockstep_sim::oracle::check_order;
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};
use serde_json::json;

const GANG: Spec = Spec {
    priority: 10,
    members: 3,
    gpus: 1,
};

/// A random failure or user action.
fn misfortune(world: &mut Gangs) {
    let node = format!("n{}", world.pick(4));
    let name = ["a", "b"][world.pick(2)];
    let pods = world.pods_of(name);
    let pod = (!pods.is_empty()).then(|| pods[world.pick(pods.len())].clone());
    match (world.pick(14), pod) {
        (0..3, Some(pod)) => {
            let code = [1, 137, 42][world.pick(3)];
            world.exit_pod(&pod, code);
        }
        (3, Some(pod)) => world.delete(WatchedKind::Pod, &Key::of(&pod)),
        (4, Some(pod)) => drop(world.evict(&pod)),
        (5, _) => world.lose(&node),
        (6, _) => world.find(&node),
        (7, _) => {
            let writes = world.pick(4);
            world.crash_after(writes);
        }
        (8, _) => world.line().lost_answers = 1,
        (9, _) => world.cluster.node(&node).agent_loses_memory(),
        (10, _) => world.cluster.node(&node).restart_kubelet(),
        (11, _) => world.edit(name, |w| w.spec.restart_nonce += 1),
        (12, _) => world.edit(name, |w| w.spec.suspend = !w.spec.suspend),
        _ => {
            let kind = ALWAYS_WATCHED[world.pick(ALWAYS_WATCHED.len())];
            world.store().relist(kind);
        }
    }
}

/// Ends all failures.
fn heal(world: &mut Gangs) {
    for node in world.node_names() {
        world.find(&node);
    }
    for name in ["a", "b"] {
        world.edit(name, |w| w.spec.suspend = false);
    }
}

/// Reports a node with more promised than existing accelerators.
fn overcommitted(world: &Gangs) -> Option<String> {
    let mut promised: BTreeMap<String, usize> = BTreeMap::new();
    let placed = ["a", "b"].map(|name| (!world.released(name)).then(|| world.nodes(name)));
    for node in placed.into_iter().flatten().flatten() {
        *promised.entry(node).or_default() += 1;
    }
    let over = promised.into_iter().find(|(_, members)| *members > 2)?;
    Some(format!("{} members on {}", over.1, over.0))
}

fn statuses(world: &Gangs, name: &str) -> Vec<TrainingWorkloadStatus> {
    let store = world.store();
    let ours = store.log.iter().filter(|write| {
        let status =
            write.kind == WatchedKind::TrainingWorkload && write.verb == Verb::UpdateStatus;
        status && *write.key.name == *name
    });
    ours.map(|write| serde_json::from_value(write.object["status"].clone()).unwrap())
        .collect()
}

/// Six by default; `SIM_SEEDS` overrides it.
fn seeds() -> std::ops::Range<u64> {
    let number = std::env::var("SIM_SEEDS").ok().and_then(|n| n.parse().ok());
    0..number.unwrap_or(6)
}

#[test]
fn two_gangs_with_random_failures_converge_and_run() {
    for seed in seeds() {
        let mut world = Gangs::with_seed(seed, &[("n0", 2), ("n1", 2), ("n2", 2), ("n3", 2)]);
        let patient = json!({"failurePolicy": {"limits": {"maxRestarts": 1000}}});
        world.gang_with("a", GANG, &patient);
        world.gang_with("b", GANG, &patient);
        for _ in 0..30 {
            for _ in 0..40 {
                world.step();
                assert_eq!(
                    overcommitted(&world),
                    None,
                    "seed {seed}\n{}",
                    world.story(40)
                );
            }
            misfortune(&mut world);
        }
        heal(&mut world);
        world.patience = chrono::TimeDelta::seconds(700);
        world.settle();
        for name in ["a", "b"] {
            let status = world.workload(name).status.unwrap_or_default();
            let story = world.story(40);
            let phase = Some(Phase::Running);
            assert_eq!(
                status.phase, phase,
                "seed {seed}, {name}: {status:#?}\n{story}"
            );
            assert_eq!(world.running(name), 3, "seed {seed}, {name}");
            assert!(world.is_idle(&Key::new("ml", name)), "seed {seed}, {name}");
            for pair in statuses(&world, name).windows(2) {
                let (old, new) = (&pair[0], &pair[1]);
                let broken = check_order(old, new);
                assert!(
                    broken.is_empty() && new.attempt >= old.attempt,
                    "seed {seed}, {name}: {broken:?} {old:#?} {new:#?}"
                );
            }
        }
    }
}

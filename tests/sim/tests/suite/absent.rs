//! Absent schedulers: capacity that was freed for their gangs goes to other gangs in the end, in
//! any order of actors and after any loss of the manager.

use lockstep_sim::oracle::Oracles;
use lockstep_sim::{Gangs, Spec};
use serde_json::json;

use crate::{HIGH, LOW};

/// Duration of a round in seconds.
const TURN: i64 = 10;
/// Rounds of a story: three hours.
const TURNS: usize = 1080;

/// A gang whose members each name a scheduler.
fn gang_of(world: &mut Gangs, name: &str, priority: i32, schedulers: &[&str]) {
    let limits = json!({"limits": {"nvidia.com/gpu": "1"}});
    let group = |(at, scheduler): (usize, &&str)| {
        json!({"name": format!("g{at}"), "template": {"spec":
            {"schedulerName": scheduler, "containers": [{"name": "c", "resources": limits}]}}})
    };
    let groups: Vec<_> = schedulers.iter().enumerate().map(group).collect();
    let spec = Spec { priority, ..HIGH };
    world.gang_with(name, spec, &json!({"groups": groups}));
}

#[test]
fn gangs_that_are_never_scheduled_do_not_delay_other_gangs_forever() {
    for seed in 0..3 {
        let nodes = [("n1", 2), ("n2", 2), ("n3", 2)];
        let mut world = Gangs::with_seed(seed, &nodes);
        let low = ["a", "b", "c"];
        for name in low {
            world.gang(name, LOW);
        }
        world.settle();
        gang_of(&mut world, "x", 100, &["absent", "absent"]);
        gang_of(
            &mut world,
            "y",
            200,
            &["default-scheduler", "absent", "absent"],
        );
        let mut oracles = Oracles::default();
        for turn in 0..TURNS {
            if world.pick(40) == 0 {
                world.crash();
            }
            match turn {
                // kube-scheduler itself is absent for some minutes.
                120 => world.store().schedulers.clear(),
                180 => {
                    let name = "default-scheduler".to_owned();
                    world.store().schedulers.insert(name);
                }
                _ => {}
            }
            world.round();
            let broken = oracles.look(&mut world.cluster);
            assert_eq!(
                broken,
                Vec::<String>::new(),
                "seed {seed}, turn {turn}\n{}",
                world.story(60)
            );
            world.later(TURN);
        }
        assert!(oracles.looked["I13"] > TURNS / 2);
        let evicted = [world.preemptions("x"), world.preemptions("y")];
        assert_eq!(evicted, [1, 1], "seed {seed}: once each, and in vain");
        let running = low.map(|name| world.running(name));
        assert_eq!(running, [2, 2, 2], "seed {seed}\n{}", world.story(60));
        assert_eq!((world.running("x"), world.running("y")), (0, 0));
    }
}

//! What is printed.

use lockstep_wire::{FromAgent, Release, Rendezvous, Text};

use super::Scene;
use crate::machine::{Effect, Event};

#[test]
fn a_start_says_how_many_meet_where_that_is_told_and_where() {
    let printed = |world, coordinator| {
        let mut scene = Scene::with_agent();
        scene.order(FromAgent::Hold { attempt: 2 });
        let release = Release {
            attempt: 2,
            coordinator,
            world,
            rank: None,
            peers: Text::default(),
            progress: None,
        };
        let release = Event::Order(FromAgent::Release(release));
        let effects = scene.machine.on(release, scene.now());
        let mut lines = effects.into_iter().filter_map(|effect| match effect {
            Effect::Print(line) => Some(line),
            _ => None,
        });
        lines.next().unwrap()
    };
    let coordinator = Some(Rendezvous {
        ip: [10, 0, 0, 7].into(),
        port: 29_501,
    });
    for (world, coordinator, line) in [
        // As agents say it: the number is in the pod's environment.
        (
            0,
            coordinator,
            "attempt 2 starts: coordinator 10.0.0.7:29501",
        ),
        (0, None, "attempt 2 starts"),
        (1, None, "attempt 2 starts: 1 member"),
        (
            4,
            coordinator,
            "attempt 2 starts: 4 members, coordinator 10.0.0.7:29501",
        ),
    ] {
        assert_eq!(printed(world, coordinator), line);
    }
}

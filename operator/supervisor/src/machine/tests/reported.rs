//! Reports after an event: to an agent that reconnects, and in the log.

use std::time::Duration;

use lockstep_supervisor_protocol::{FromAgent, FromSupervisor, Release, Rendezvous, Text};

use super::{START, Scene};
use crate::machine::{Effect, Ending, Event};

#[test]
fn an_agent_that_comes_late_hears_when_the_child_ended() {
    let mut scene = Scene::running(1);
    scene.gives(Event::AgentWent);
    scene.second += 5;
    scene.ends(Ending::Code(42));
    scene.gives(Event::TreeEnded);
    scene.second += 15;
    let told = scene.gives(Event::AgentCame);
    let [Effect::SendExit(own)] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(own.at, Duration::from_secs(START + 5));
    let booted = Duration::from_millis(1_000_000_250);
    let FromSupervisor::Exited { exit, time } = own.clone().into_frame(|at| booted + at) else {
        panic!("another frame");
    };
    assert_eq!((exit.code, time), (42, 1_001_005_250));
}

#[test]
fn a_start_logs_the_member_count_and_coordinator_if_known() {
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
            checkpoint: None,
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
        // As current agents send it: the pod's environment has the number.
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

//! What holds whatever happens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::world::{Spec, World};

#[derive(Clone, Debug)]
enum Event {
    Gang {
        priority: i32,
        members: i32,
        gpus: i64,
    },
    /// A gang whose claim does not exist.
    Broken {
        priority: i32,
        members: i32,
        gpus: i64,
    },
    Sticky(usize, i32),
    MinRuntime(u64),
    Pass,
    Control,
    Bind,
    End,
    Crash,
    Finish(usize),
    Node(usize, bool),
    Later(i64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (1..4i32, 1..6i32, 1..3i64).prop_map(|(p, members, gpus)| Event::Gang { priority: p * 10, members, gpus }),
        1 => (1..4i32, 1..6i32, 1..3i64).prop_map(|(p, members, gpus)| Event::Broken { priority: p * 10, members, gpus }),
        1 => (0..8usize, 5..40i32).prop_map(|(n, priority)| Event::Sticky(n, priority)),
        1 => (0..8u64).prop_map(Event::MinRuntime),
        6 => Just(Event::Pass),
        6 => Just(Event::Control),
        6 => Just(Event::Bind),
        3 => Just(Event::End),
        1 => Just(Event::Crash),
        1 => (0..8usize).prop_map(Event::Finish),
        1 => (0..4usize, any::<bool>()).prop_map(|(n, ready)| Event::Node(n, ready)),
        2 => (1..20i64).prop_map(Event::Later),
    ];
    prop::collection::vec(event, 1..80)
}

const NODES: [(&str, i64); 4] = [("n0", 4), ("n1", 4), ("n2", 2), ("n3", 3)];

/// Accelerators that the seats and pods of placements without an intent need on each node, against
/// what it has. Seats that wait for victims overlap with these victims, and with nobody else.
fn overcommitted(world: &World) -> Option<String> {
    for (node, offered) in NODES {
        let mut promised = 0;
        for name in world
            .groups
            .keys()
            .filter(|name| world.intent(name).is_none() && !world.released(name))
        {
            let each = world.workloads[name.as_str()].spec.groups[0]
                .template
                .0
                .spec
                .as_ref()
                .unwrap()
                .containers[0]
                .resources
                .as_ref()
                .and_then(|r| {
                    r.limits
                        .as_ref()?
                        .get("nvidia.com/gpu")?
                        .0
                        .parse::<i64>()
                        .ok()
                })
                .unwrap();
            promised += each * world.nodes(name).iter().filter(|n| *n == node).count() as i64;
        }
        if promised > offered {
            return Some(format!("{node}: {promised} of {offered} promised"));
        }
    }
    None
}

/// A gang holds at least what it needs, or nothing; unless members were lost while it runs.
fn partly_placed(world: &World, lost: bool) -> Option<String> {
    world.groups.iter().find_map(|(name, group)| {
        let needed = group.spec.gang.scheduling_policy.gang.as_ref()?.min_count as usize;
        let seats = world.seats(name).len();
        (!lost && seats > 0 && seats < needed).then(|| format!("{name}: {seats} of {needed}"))
    })
}

/// A victim that counts for as much as its preemptor.
fn out_of_reach(world: &World) -> Option<String> {
    world.groups.iter().find_map(|(name, group)| {
        let intent = world.intent(name)?;
        let victim = intent
            .victims
            .iter()
            .find(|v| v.priority >= group.spec.gang.priority)?;
        Some(format!(
            "{name} evicts {} of priority {}",
            victim.name, victim.priority
        ))
    })
}

/// A gang for which work was preempted after it had been refused for another reason than capacity,
/// or after a preemption that was of no use. `known` remembers how often each had preempted when
/// that was found out.
fn preempts_in_vain(world: &World, known: &mut BTreeMap<String, usize>) -> Option<String> {
    world.without_claim.iter().find_map(|name| {
        let preemptions = world.preempted_for.get(name).map_or(0, BTreeSet::len);
        let status = world.groups.get(name)?.status.clone().unwrap_or_default();
        if status.refusal.is_some() || status.last_preemption.is_some_and(|p| p.useless) {
            known.entry(name.clone()).or_insert(preemptions);
        }
        let allowed = *known.get(name)?;
        (preemptions > allowed).then(|| {
            format!("{name} has preempted {preemptions} times, {allowed} before it was refused")
        })
    })
}

/// Plays the events, holding the invariants after each, and lets the world come to rest with all
/// nodes ready.
fn play(events: Vec<Event>) {
    let mut world = World::new(&NODES);
    let (mut made, mut lost) = (0, false);
    let mut known = BTreeMap::new();
    for event in events {
        match event {
            Event::Gang {
                priority,
                members,
                gpus,
            } => {
                world.gang(
                    &format!("g{made}"),
                    Spec {
                        priority,
                        members,
                        gpus,
                    },
                );
                made += 1;
            }
            Event::Broken {
                priority,
                members,
                gpus,
            } => {
                let name = format!("g{made}");
                world.gang(
                    &name,
                    Spec {
                        priority,
                        members,
                        gpus,
                    },
                );
                world.without_claim.insert(name);
                made += 1;
            }
            Event::Sticky(n, priority) => {
                world.preemption_priority.insert(format!("g{n}"), priority);
            }
            Event::MinRuntime(seconds) => {
                world.settings.rules.min_runtime = Duration::from_secs(seconds);
            }
            Event::Pass => {
                world.pass();
            }
            Event::Control => world.control(),
            Event::Bind => world.bind(),
            Event::End => world.end_terminating(),
            Event::Crash => world.memory = crate::Memory::default(),
            Event::Finish(n) => {
                let name = format!("g{n}");
                if world.groups.remove(&name).is_some() {
                    for pod in world.pods_of(&name) {
                        world.remove(&pod.name);
                    }
                }
            }
            Event::Node(n, ready) => {
                lost |= !ready;
                world.node(NODES[n].0, NODES[n].1, ready);
            }
            Event::Later(seconds) => world.later(seconds),
        }
        assert_eq!(overcommitted(&world), None);
        assert_eq!(partly_placed(&world, lost), None);
        assert_eq!(out_of_reach(&world), None);
        assert_eq!(preempts_in_vain(&world, &mut known), None);
    }
    for (name, gpus) in NODES {
        world.node(name, gpus, true);
    }
    world.settle();
    let steps = world.pass().steps;
    assert!(steps.is_empty(), "at rest nothing is written: {steps:#?}");
    // With all nodes there, and nothing else happening, a preemption is either of use or found out
    // to be of none.
    let before = world.preempted_for.clone();
    for _ in 0..15 {
        world.settle();
        world.later(20);
        assert_eq!(preempts_in_vain(&world, &mut known), None);
    }
    for name in &world.without_claim {
        let more = |of: &BTreeMap<String, BTreeSet<_>>| of.get(name).map_or(0, BTreeSet::len);
        assert!(
            more(&world.preempted_for) <= more(&before) + 1,
            "{name} preempts again and again"
        );
    }
}

/// Cases, unless `PROPTEST_CASES` says another number.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]
    #[test]
    fn room_is_never_promised_twice_and_gangs_are_placed_whole_or_not_at_all(events in events()) {
        play(events);
    }
}

/// Two victims are needed; as long as each new intent took the victim of the one dropped before it
/// for leaving, each was one victim short and was dropped in turn.
#[test]
fn an_intent_that_is_dropped_no_longer_counts_its_victims_as_leaving() {
    let gang = |priority, members, gpus| Event::Gang {
        priority,
        members,
        gpus,
    };
    play(vec![
        Event::Node(0, false),
        gang(10, 2, 1),
        Event::Pass,
        gang(30, 1, 2),
        gang(30, 1, 2),
        gang(10, 3, 1),
        gang(20, 4, 1),
        Event::Pass,
        Event::Control,
        Event::Pass,
        gang(10, 1, 1),
        Event::Control,
        Event::Pass,
        gang(30, 3, 2),
        Event::Control,
        Event::Bind,
        gang(30, 1, 1),
        gang(10, 1, 1),
        Event::Pass,
    ]);
}

/// Nobody looked between the moment when the victims were leaving and the one when they had left,
/// seconds later.
#[test]
fn refusals_while_victims_leave_are_not_counted_up_to_the_next_look() {
    let gang = |priority, members, gpus| Event::Gang {
        priority,
        members,
        gpus,
    };
    let mut events = vec![
        gang(10, 1, 1),
        gang(10, 1, 1),
        Event::Sticky(0, 5),
        gang(10, 2, 1),
        gang(10, 1, 1),
        gang(10, 1, 1),
        Event::Pass,
    ];
    events.extend([
        gang(20, 5, 2),
        Event::Pass,
        Event::Control,
        Event::Bind,
        Event::Pass,
        Event::Control,
    ]);
    events.extend([
        Event::Pass,
        Event::Control,
        Event::Bind,
        Event::Pass,
        Event::Later(5),
        Event::End,
        Event::Pass,
    ]);
    play(events);
}

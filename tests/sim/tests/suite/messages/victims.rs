//! Stories of preemptions, and of victims that are protected or do not end.

use std::num::NonZeroU32;
use std::time::Duration;

use lockstep_engine::Algorithm;
use lockstep_model::VictimScope;
use lockstep_sim::api::{Refused, Rule, Verb};
use lockstep_sim::pods::add_foreign_gate;
use lockstep_sim::{Actor, Gangs, Key, Spec, WatchedKind};
use serde_json::json;

use super::gangs::{Story, lasts};
use crate::{HIGH, LOW, contested};

pub(super) const STORIES: &[Story] = &[
    ("waits for pods that are ending", || {
        let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
        world.foreign("ending", "n1", 1, 2);
        world.foreign("running", "n2", 1, 2);
        world.delete(WatchedKind::Pod, &Key::new("ml", "ending"));
        world.gang("high", HIGH);
        world.pass();
        world.control();
        world
    }),
    ("may evict no such work", || {
        let mut world = Gangs::new(&[("n1", 2)]);
        world.scheduler_settings().rules.victims.scope = VictimScope::Gangs;
        world.foreign("trainer", "n1", 0, 2);
        world.gang("high", HIGH);
        lasts(&mut world, 10);
        world
    }),
    ("evicts work that does not leave", does_not_leave),
    ("evicts beyond budgets", || {
        let mut world = Gangs::new(&[("n1", 1)]);
        world.scheduler_settings().delete_after = Some(Duration::from_secs(30));
        world.guarded("web", "n1");
        world.gang("high", Spec { members: 1, ..HIGH });
        lasts(&mut world, 60);
        world
    }),
    ("waits for the limit of evictions", || {
        let mut world = two_gangs();
        world.scheduler_settings().max_evictions_per_minute = NonZeroU32::new(2);
        world.gang("first", HIGH);
        world.gang("second", HIGH);
        lasts(&mut world, 30);
        world
    }),
    ("is not known as it is admitted", || {
        let mut world = two_gangs();
        world.store().admission.webhook = Some(Box::new(|_| Ok(())));
        world.store().admission.no_dry_runs = true;
        world.gang("high", HIGH);
        lasts(&mut world, 120);
        world
    }),
    ("is held by a scheduling gate of another controller", || {
        let mut world = two_gangs();
        world.store().admission.webhook = Some(Box::new(|pod| {
            if pod["spec"]["priorityClassName"] == "high" {
                add_foreign_gate(pod);
            }
            Ok(())
        }));
        world.gang("high", HIGH);
        lasts(&mut world, 60);
        world
    }),
    ("has a choice of victims", || {
        let mut world = two_gangs();
        world.gang("high", HIGH);
        world.settle();
        world
    }),
    ("has many victims", || {
        let mut world = Gangs::new(&[("n1", 6)]);
        for n in 0..6 {
            world.foreign(&format!("pod-{n}"), "n1", 1, 1);
        }
        world.gang("high", Spec { members: 6, ..HIGH });
        world.settle();
        world
    }),
    ("spares a victim", spares),
    ("evicts work that evicts others in turn", in_turn),
    ("chooses victims as the KEP does", || {
        let mut world = two_gangs();
        world.scheduler_settings().rules.algorithm = Algorithm::Kep;
        world.gang("high", HIGH);
        world.settle();
        world
    }),
    ("expects that its victim saves a checkpoint", saves),
    ("is refused again after a preemption", refused_again),
    ("has nobody to schedule it", nobodys),
    ("is told of a preemption that is withdrawn", || {
        let mut world = contested();
        while !world.disrupted("low") {
            world.pass();
        }
        world.delete(WatchedKind::TrainingWorkload, &Key::new("ml", "high"));
        while world.run(&Actor::GarbageCollector) {}
        world.schedule();
        world
    }),
    ("never preempts", || {
        let mut world = two_gangs();
        let never = json!({"scheduling": {"preemptionPolicy": "Never"}});
        world.gang_with("modest", HIGH, &never);
        lasts(&mut world, 10);
        world
    }),
];

fn two_gangs() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    for name in ["low-1", "low-2"] {
        world.gang(name, LOW);
        world.settle();
    }
    world
}

/// The victim has saved on request before.
fn saves() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang_with("low", LOW, &json!({"checkpoint": {"onRequest": {}}}));
    world.settle();
    world.later(3600);
    let request = json!({"id": "1", "reason": "User", "attempt": 1, "requestedAt": world.now(),
        "deadline": world.now(), "outcome": "Saved", "millis": 20_000});
    world.edit("low", |w| {
        let domains = &mut w.status.get_or_insert_default().domains;
        domains[0].checkpoint_request = serde_json::from_value(request).ok();
    });
    world.later(600);
    world.gang("high", HIGH);
    lasts(&mut world, 10);
    world
}

fn does_not_leave() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.foreign("first", "n1", 1, 1);
    world.foreign("second", "n1", 1, 1);
    world.store().admission.rules.push(Rule {
        kind: WatchedKind::Pod,
        verb: Verb::Evict,
        name: Some("second".to_owned()),
        answer: Refused::by_budget(),
    });
    world.gang("high", HIGH);
    lasts(&mut world, 330);
    world
}

/// One of two victims can stay, because its node has become larger.
fn spares() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.foreign("one", "n1", 1, 1);
    world.foreign("two", "n1", 1, 1);
    world.gang("high", HIGH);
    world.pass();
    world.node("n1", 3, true);
    lasts(&mut world, 5);
    world
}

/// The victim would evict another unit for its own return.
fn in_turn() -> Gangs {
    let mut world = Gangs::new(&[]);
    world.zone("n1", 1, &json!({"zone": "a"}));
    world.zone("n2", 1, &json!({"zone": "b"}));
    world.foreign("middle", "n2", 5, 1);
    let one = |priority| Spec {
        priority,
        members: 1,
        gpus: 1,
    };
    world.gang("low", one(10));
    world.settle();
    let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let spec = json!({"containers": [container], "nodeSelector": {"zone": "a"}});
    let group = json!({"name": "g", "replicas": 1, "template": {"spec": spec}});
    world.gang_with("high", one(100), &json!({"groups": [group]}));
    world.settle();
    world
}

/// The preemptor names an absent scheduler.
fn nobodys() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang("low", LOW);
    world.settle();
    let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let spec = json!({"schedulerName": "volcano", "containers": [container]});
    let group = json!({"name": "g", "replicas": 2, "template": {"spec": spec}});
    world.gang_with("high", HIGH, &json!({"groups": [group]}));
    lasts(&mut world, 1100);
    world
}

/// kube-scheduler refuses for its own reasons, before and after a preemption.
fn refused_again() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("low", Spec { members: 4, ..LOW });
    world.settle();
    world.obstructed_gang("odd", HIGH);
    for _ in 0..20 {
        let says = "0/1 nodes are available: 1 node(s) had volume node affinity conflict";
        world.refuse_pods("odd", says);
        lasts(&mut world, 20);
    }
    world.gang("low-again", Spec { members: 4, ..LOW });
    lasts(&mut world, 60);
    world
}

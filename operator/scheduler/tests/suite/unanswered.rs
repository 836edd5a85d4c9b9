//! Work was evicted for a gang whose pods are neither bound nor refused.

use chrono::TimeDelta;
use lockstep_api::scheduling::BindingProgress;
use lockstep_api::words::time;
use lockstep_sim::api::Refused;
use lockstep_sim::{Gangs, Key, WatchedKind};
use serde_json::{Value, json};

use crate::{HIGH, LOW, run};

/// Groups of one member each, whose pods name these schedulers.
fn groups(schedulers: &[&str]) -> Value {
    let limits = json!({"limits": {"nvidia.com/gpu": "1"}});
    let group = |(at, scheduler): (usize, &&str)| {
        json!({"name": format!("g{at}"), "template": {"spec":
            {"schedulerName": scheduler, "containers": [{"name": "c", "resources": limits}]}}})
    };
    schedulers.iter().enumerate().map(group).collect()
}

/// A node full of work of low priority, and a gang of high priority that names these schedulers.
fn contested(schedulers: &[&str]) -> Gangs {
    let gpus = schedulers.len() as i64;
    let mut world = Gangs::new(&[("n1", gpus)]);
    let members = schedulers.len() as i32;
    world.gang("low", lockstep_sim::Spec { members, ..LOW });
    world.settle();
    world.gang_with("high", HIGH, &json!({"groups": groups(schedulers)}));
    world
}

fn serve(world: &mut Gangs, scheduler: &str) {
    world.store().schedulers.insert(scheduler.to_owned());
}

fn progress(world: &Gangs) -> Option<BindingProgress> {
    world.intent("high")?.binding
}

/// True if its status records that its pods were neither bound nor refused.
fn is_silent(world: &Gangs) -> bool {
    let refusal = world.status("high").refusal;
    refusal.is_some_and(|r| r.unanswered)
}

/// Runs until the victims are gone and the status records that.
fn until_victims_are_gone(world: &mut Gangs) {
    for _ in 0..120 {
        run(world, 1);
        if progress(world).is_some() {
            return;
        }
    }
    panic!("no victim was found gone: {:?}", world.intent("high"));
}

/// Seconds until the preemption is withdrawn.
fn given_up_in(world: &mut Gangs, at_most: i64) -> i64 {
    for second in 0..at_most {
        if world.intent("high").is_none() {
            return second;
        }
        run(world, 1);
    }
    panic!(
        "it goes on after {at_most} s: {:?}\n{}",
        world.intent("high"),
        world.story(20)
    );
}

#[test]
fn capacity_evicted_for_a_gang_that_is_never_scheduled_is_released_after_15_minutes() {
    let mut world = contested(&["absent", "absent"]);
    until_victims_are_gone(&mut world);
    let seconds = given_up_in(&mut world, 1200);
    assert!((900..=1020).contains(&seconds), "after {seconds} s");
    run(&mut world, 7200);
    assert_eq!(
        (world.running("low"), world.preemptions("high")),
        (2, 1),
        "the others run, and are not evicted again"
    );
}

#[test]
fn bound_members_release_their_nodes_with_members_that_are_never_scheduled() {
    let mut world = contested(&["default-scheduler", "absent", "absent"]);
    until_victims_are_gone(&mut world);
    run(&mut world, 5);
    assert_eq!(world.running("high"), 1);
    run(&mut world, 1080);
    assert_eq!((world.running("high"), world.running("low")), (0, 3));
    run(&mut world, 3600);
    assert_eq!((world.running("low"), world.preemptions("high")), (3, 1));
}

#[test]
fn a_new_leader_continues_the_deadline_of_the_previous_leader() {
    let mut world = contested(&["absent", "absent"]);
    until_victims_are_gone(&mut world);
    for _ in 0..10 {
        run(&mut world, 100);
        world.crash();
    }
    given_up_in(&mut world, 100);
    run(&mut world, 60);
    assert_eq!(world.running("low"), 2);
}

#[test]
fn a_gang_whose_members_are_bound_one_after_the_other_is_waited_for() {
    let mut world = contested(&["a", "b", "c"]);
    until_victims_are_gone(&mut world);
    for scheduler in ["a", "b", "c"] {
        run(&mut world, 840);
        serve(&mut world, scheduler);
    }
    run(&mut world, 60);
    assert_eq!(
        (world.running("high"), world.preemptions("high")),
        (3, 1),
        "{:?}",
        world.condition("high")
    );
    assert_eq!(world.status("high").last_preemption, None);
}

#[test]
fn a_victim_that_leaves_another_node_slowly_does_not_delay_the_binding() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
    world.gang("low", lockstep_sim::Spec { members: 2, ..LOW });
    world.settle();
    world.fault("n2", |faults| faults.unkillable = true);
    world.gang_with("high", HIGH, &json!({"groups": groups(&["absent"])}));
    until_victims_are_gone(&mut world);
    assert_eq!(world.nodes("high"), ["n1"]);
    let left = world.pods_of("low");
    let left: Vec<Option<&str>> = left.iter().map(lockstep_sim::pods::node_of).collect();
    assert_eq!(left, [Some("n2")], "it still leaves");
}

/// Members of a large gang are bound in many cycles.
#[test]
fn progress_is_written_once_a_minute_at_most() {
    let names: Vec<String> = (0..20).map(|at| format!("s{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = contested(&names);
    until_victims_are_gone(&mut world);
    let mut seen = vec![progress(&world)];
    for name in &names[..19] {
        serve(&mut world, name);
        run(&mut world, 10);
        if seen.last() != Some(&progress(&world)) {
            seen.push(progress(&world));
        }
    }
    assert_eq!(seen.len(), 4, "190 s: {seen:?}");
    given_up_in(&mut world, 1100);
}

#[test]
fn the_clock_of_the_leader_before_delays_the_end_by_no_more_than_once() {
    let mut world = contested(&["absent", "absent"]);
    until_victims_are_gone(&mut world);
    let ahead = world.now() + TimeDelta::hours(1);
    world.edit_group("high", |group| {
        let intent = group.status.as_mut().unwrap().preemption.as_mut();
        intent.unwrap().binding = Some(BindingProgress {
            bound: 0,
            since: ahead,
        });
    });
    given_up_in(&mut world, 1020);
}

/// The manager was unavailable, so kube-scheduler may have been too.
#[test]
fn after_an_outage_schedulers_have_a_minute() {
    let mut world = contested(&["late", "late"]);
    until_victims_are_gone(&mut world);
    world.later(3600);
    run(&mut world, 30);
    assert!(world.intent("high").is_some());
    serve(&mut world, "late");
    run(&mut world, 30);
    assert_eq!((world.running("high"), world.intent("high")), (2, None));
}

#[test]
fn conditions_name_the_silent_scheduler_the_deadline_and_the_remedy() {
    let mut world = contested(&["absent", "default-scheduler"]);
    until_victims_are_gone(&mut world);
    run(&mut world, 130);
    let since = progress(&world).unwrap().since;
    let waits = format!(
        "; its nodes are free of victims, and 1 of 2 members are bound since {}; preemption withdrawn at {} unless \
         absent binds or refuses a pod by then",
        time(since),
        time(since + TimeDelta::minutes(15)),
    );
    let message = world.condition("high").message;
    assert!(message.ends_with(&waits), "{message}");
    let pod = world.pods_of("high").remove(0).metadata.name.unwrap();
    given_up_in(&mut world, 1020);
    let refusal = world.status("high").refusal.unwrap();
    let said = format!(
        "scheduler absent (template.spec.schedulerName of group g0) has neither bound nor refused 1 pod within 15 min, \
         for example {pod} on n1"
    );
    assert_eq!((&refusal.message, refusal.unanswered), (&said, true));
    let message = world.condition("high").message;
    let next = time(refusal.at + TimeDelta::seconds(5));
    assert!(
        message.contains(&format!(
            "{said}; capacity is not the problem, so no workload is preempted for this gang; retry at {next}"
        )),
        "{message}"
    );
    run(&mut world, 600);
    let message = world.condition("high").message;
    assert!(message.contains(&said), "{message}");
}

#[test]
fn another_spec_may_preempt_again() {
    let mut world = contested(&["absent", "absent"]);
    until_victims_are_gone(&mut world);
    run(&mut world, 1200);
    assert_eq!((world.running("low"), world.preemptions("high")), (2, 1));
    world.edit("high", |w| {
        w.spec.suspend = true;
    });
    run(&mut world, 10);
    world.edit("high", |w| {
        for group in &mut w.spec.groups {
            let spec = group.template.0.spec.as_mut().unwrap();
            spec.scheduler_name = None;
        }
        w.spec.suspend = false;
    });
    run(&mut world, 120);
    assert_eq!((world.running("high"), world.preemptions("high")), (2, 2));
}

/// No other gang waited when the preemption was withdrawn, so the gang got the same nodes again.
#[test]
fn free_capacity_is_held_no_longer_than_the_deadline_of_the_start() {
    let mut world = contested(&["absent", "absent"]);
    until_victims_are_gone(&mut world);
    let low = Key::new("ml", "low");
    world.delete(WatchedKind::TrainingWorkload, &low);
    given_up_in(&mut world, 1020);
    run(&mut world, 60);
    assert!(world.placement("high").is_some());
    world.gang("late", LOW);
    run(&mut world, 1300);
    assert_eq!((world.running("late"), world.preemptions("high")), (2, 1));
}

/// Two of three members are enough, and the third has no capacity.
#[test]
fn a_gang_that_was_scheduled_after_all_is_not_called_unanswered() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang("low", LOW);
    world.settle();
    let mut three = groups(&["late"]);
    three[0]["replicas"] = json!(3);
    let elastic = json!({"groups": three, "scheduling": {"gang": {"minCount": 2}}});
    world.gang_with("high", lockstep_sim::Spec { members: 3, ..HIGH }, &elastic);
    until_victims_are_gone(&mut world);
    given_up_in(&mut world, 1020);
    assert!(is_silent(&world));
    world.delete(WatchedKind::TrainingWorkload, &Key::new("ml", "low"));
    serve(&mut world, "late");
    run(&mut world, 120);
    assert_eq!(world.running("high"), 2);
    assert!(!is_silent(&world), "{:?}", world.status("high").refusal);
}

#[test]
fn a_refusal_ends_what_was_noted_of_silence() {
    let mut world = contested(&["absent", "absent"]);
    until_victims_are_gone(&mut world);
    given_up_in(&mut world, 1020);
    world.delete(WatchedKind::TrainingWorkload, &Key::new("ml", "low"));
    run(&mut world, 60);
    assert!(is_silent(&world) && world.placement("high").is_some());
    world.refuse_pods(
        "high",
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    );
    run(&mut world, 15);
    assert!(!is_silent(&world), "{:?}", world.status("high").refusal);
}

/// Other gangs got its capacity, so it has no pods for a scheduler to answer.
#[test]
fn a_scheduler_that_binds_other_pods_again_is_no_longer_treated_as_silent() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 1)]);
    world.gang("low", LOW);
    world.foreign("busy", "n2", HIGH.priority, 1);
    world.settle();
    world.gang_with("high", HIGH, &json!({"groups": groups(&["late", "late"])}));
    until_victims_are_gone(&mut world);
    given_up_in(&mut world, 1020);
    run(&mut world, 60);
    assert!(is_silent(&world));
    assert_eq!(world.status("high").reservation, None);
    serve(&mut world, "late");
    world.remove(WatchedKind::Pod, &Key::new("ml", "busy"));
    world.gang_with("other", LOW, &json!({"groups": groups(&["late"])}));
    run(&mut world, 60);
    assert_eq!((world.running("other"), is_silent(&world)), (1, false));
    assert!(world.status("high").reservation.is_some());
    assert_eq!(world.preemptions("high"), 1, "there is no second one");
}

#[test]
fn a_failure_of_a_scheduler_is_reported_with_its_message() {
    let mut world = contested(&["absent", "absent"]);
    until_victims_are_gone(&mut world);
    run(&mut world, 600);
    let message = "running PreBind plugin \"VolumeBinding\": binding volumes: timed out";
    world.fail_pods("high", message);
    given_up_in(&mut world, 1020);
    let refusal = world.status("high").refusal.unwrap();
    assert_eq!(
        (refusal.message.as_str(), refusal.unanswered),
        (message, false)
    );
}

#[test]
fn members_that_have_finished_count_as_bound() {
    let mut world = contested(&["a", "b", "c"]);
    until_victims_are_gone(&mut world);
    serve(&mut world, "a");
    run(&mut world, 70);
    assert_eq!(progress(&world).map(|p| p.bound), Some(1));
    let bound = |p: &&k8s_openapi::api::core::v1::Pod| p.spec.as_ref().unwrap().node_name.is_some();
    let pods = world.pods_of("high");
    assert!(world.exit_pod(pods.iter().find(bound).unwrap(), 0));
    for scheduler in ["b", "c"] {
        run(&mut world, 840);
        assert!(
            world.intent("high").is_some(),
            "{:?}\n{}",
            world.condition("high"),
            world.story(20)
        );
        serve(&mut world, scheduler);
    }
    run(&mut world, 60);
    assert_eq!((world.running("high"), world.preemptions("high")), (2, 1));
}

/// Its pods cannot be created, so no scheduler can answer.
#[test]
fn pods_that_do_not_exist_are_nobodys_silence() {
    let mut world = Gangs::new(&[("n1", 1)]);
    world.foreign("others", "n1", LOW.priority, 1);
    world.gang("high", lockstep_sim::Spec { members: 1, ..HIGH });
    for _ in 0..5 {
        if world.intent("high").is_none() {
            world.pass();
        }
    }
    assert!(world.intent("high").is_some() && world.pods_of("high").is_empty());
    let down = |_: &mut Value| Err(Refused::new(500, "InternalError", "no endpoints"));
    world.store().admission.webhook = Some(Box::new(down));
    world.remove(WatchedKind::Pod, &Key::new("ml", "others"));
    until_victims_are_gone(&mut world);
    given_up_in(&mut world, 1020);
    run(&mut world, 60);
    assert_eq!(world.status("high").refusal, None);
}

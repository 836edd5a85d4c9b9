//! Node demand: signal pods and requests exist while a gang lacks nodes, and no longer.

use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use lockstep_api::key::Key;
use lockstep_api::provisioning::{AGAINST_CONSOLIDATION, CONSUMED_CLASS, CONSUMED_REQUEST};
use lockstep_api::provisioning::{ProvisioningRequest, SIGNAL_SCHEDULER};
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_manager::stepped::{ProvisioningSettings, WatchedKind};
use lockstep_sim::api::Patch;
use lockstep_sim::{Gangs, Spec};
use serde_json::{Value, json};

use super::LOW;

const PODS: AutoscalerMode = AutoscalerMode::Pods;
const REQUESTS: AutoscalerMode = AutoscalerMode::ProvisioningRequest;

fn world(mode: AutoscalerMode) -> Gangs {
    let mut world = Gangs::new(&[]);
    world.restart_with_autoscaler(ProvisioningSettings {
        mode,
        namespace: "signals".into(),
        max_pods: 100,
        class: "atomic".into(),
        ..ProvisioningSettings::default()
    });
    world
}

/// A gang of two members waits, with an open demand.
fn waiting(mode: AutoscalerMode, crash: Option<usize>) -> Gangs {
    let mut world = world(mode);
    if let Some(n) = crash {
        world.crash_after(n);
    }
    world.gang("g", LOW);
    world.settle();
    world
}

fn signals(world: &Gangs) -> Vec<Pod> {
    let mut pods = world.list::<Pod>();
    pods.retain(|pod| pod.metadata.namespace.as_deref() == Some("signals"));
    pods
}

fn objects(world: &Gangs) -> [usize; 3] {
    let requests = world.list::<ProvisioningRequest>().len();
    let templates = world.list::<PodTemplate>().len();
    [signals(world).len(), requests, templates]
}

/// The autoscaler reports a state of the only request.
fn report(world: &mut Gangs, condition: &str) {
    let request = world.list::<ProvisioningRequest>().remove(0);
    let condition = json!({"type": condition, "status": "True", "reason": "R", "message": "told",
        "lastTransitionTime": "2026-11-18T11:00:00Z"});
    let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    let mut store = world.store();
    let kind = WatchedKind::ProvisioningRequest;
    let told = store.patch("autoscaler", kind, &Key::of(&request), &patch, true);
    told.unwrap_or_else(|no| panic!("{}", no.message));
}

fn add_nodes(world: &mut Gangs) {
    for name in ["n1", "n2"] {
        world.node(name, 1, true);
    }
    world.settle();
}

fn annotations(world: &Gangs, key: &str) -> Vec<Option<String>> {
    let pods = world.pods_of("g").into_iter();
    let of = |pod: Pod| pod.metadata.annotations.unwrap_or_default();
    pods.map(|pod| of(pod).get(key).cloned()).collect()
}

#[test]
fn signal_pods_stand_for_members_until_the_gang_is_placed_and_never_run() {
    let mut world = waiting(PODS, None);
    let pods = signals(&world);
    assert_eq!(pods.len(), 2);
    for pod in &pods {
        let pod = serde_json::to_value(pod).unwrap();
        assert_eq!(pod["spec"]["schedulerName"], SIGNAL_SCHEDULER);
        let condition = &pod["status"]["conditions"][0];
        assert_eq!(condition["type"], "PodScheduled");
        assert_eq!(condition["reason"], "Unschedulable");
    }
    let free = world.scrape();
    world.node("n1", 1, true);
    world.settle();
    assert_eq!((world.running("g"), signals(&world).len()), (0, 2));
    assert!(free.contains("lockstep_index_objects{kind=\"Pod\"} 2"));
    world.node("n2", 1, true);
    world.settle();
    assert_eq!((world.running("g"), signals(&world).len()), (2, 0));
    for (key, value) in AGAINST_CONSOLIDATION {
        let marks = annotations(&world, key);
        assert_eq!(marks, [Some(value.to_owned()), Some(value.to_owned())]);
    }
}

#[test]
fn signal_pods_hold_no_accelerator_and_wake_no_scheduler() {
    let mut world = waiting(PODS, None);
    world.node("n1", 1, true);
    world.settle();
    let free = "lockstep_accelerators{resource=\"nvidia.com/gpu\",state=\"held\"} 0";
    assert!(world.scrape().contains(free), "{}", world.scrape());
    let cycles = |world: &Gangs| {
        let name = "lockstep_scheduler_cycle_seconds_count";
        let scrape = world.scrape();
        let lines = scrape.lines().filter(|l| l.starts_with(name));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = cycles(&world);
    let pod = signals(&world).remove(0);
    world.delete(WatchedKind::Pod, &Key::of(&pod));
    while world.round() {}
    assert_eq!(signals(&world).len(), 2, "it is replaced");
    assert_eq!(cycles(&world), before);
}

#[test]
fn whatever_ends_the_demand_ends_its_objects() {
    let suspend = |world: &mut Gangs| world.edit("g", |w| w.spec.suspend = true);
    let delete = |world: &mut Gangs| {
        world.delete(WatchedKind::TrainingWorkload, &Key::new("ml", "g"));
    };
    for (mode, made) in [(PODS, [2, 0, 0]), (REQUESTS, [0, 1, 1])] {
        let mut world = waiting(mode, None);
        assert_eq!(objects(&world), made);
        delete(&mut world);
        world.settle();
        assert_eq!(objects(&world), [0; 3]);

        let mut world = waiting(mode, None);
        suspend(&mut world);
        world.settle();
        assert_eq!(objects(&world), [0; 3]);
    }
}

#[test]
fn members_name_the_request_that_provided_their_nodes() {
    let mut world = waiting(REQUESTS, None);
    let name = world.list::<ProvisioningRequest>()[0].metadata.name.clone();
    report(&mut world, "Provisioned");
    add_nodes(&mut world);
    assert_eq!(world.running("g"), 2);
    assert_eq!(annotations(&world, CONSUMED_REQUEST), [name.clone(), name]);
    let class = Some("atomic".to_owned());
    assert_eq!(annotations(&world, CONSUMED_CLASS), [class.clone(), class]);
}

#[test]
fn members_name_no_request_that_has_provided_nothing() {
    let mut world = waiting(REQUESTS, None);
    report(&mut world, "Accepted");
    add_nodes(&mut world);
    assert_eq!(world.running("g"), 2);
    assert_eq!(annotations(&world, CONSUMED_REQUEST), [None, None]);
}

#[test]
fn a_crash_after_every_write_for_a_demand_gives_the_same_end() {
    for mode in [PODS, REQUESTS] {
        let end = |crash: Option<usize>| {
            let mut world = waiting(mode, crash);
            let made = objects(&world);
            if mode == REQUESTS {
                report(&mut world, "Provisioned");
            }
            add_nodes(&mut world);
            let used = annotations(&world, CONSUMED_REQUEST);
            let named = used.iter().flatten().count();
            let writes = world.line().writes;
            (writes, (made, world.running("g"), named, objects(&world)))
        };
        let (writes, whole) = end(None);
        let (made, named) = match mode {
            PODS => ([2, 0, 0], 0),
            _ => ([0, 1, 1], 2),
        };
        assert_eq!(whole, (made, 2, named, [0; 3]));
        for crash in 0..writes {
            assert_eq!(
                end(Some(crash)).1,
                whole,
                "{mode:?}, crash after write {crash}"
            );
        }
    }
}

#[test]
fn refused_signal_pods_are_tried_again_and_never_shown_in_part() {
    let mut world = world(PODS);
    world.store().admission.quota = Some(1);
    world.gang("g", Spec { members: 3, ..LOW });
    world.settle();
    let conditions = |world: &Gangs| {
        let all = signals(world).into_iter();
        let shown = all.map(|pod| serde_json::to_value(pod).unwrap());
        shown
            .map(|pod| pod["status"]["conditions"] != Value::Null)
            .collect::<Vec<_>>()
    };
    assert_eq!(conditions(&world), [false]);
    world.store().admission.quota = None;
    world.wait(61);
    assert_eq!(conditions(&world), [true; 3]);
}

//! Native groups of gangs.

use std::collections::BTreeSet;

use k8s_openapi::api::scheduling::v1beta1::{PodGroup, Workload};
use lockstep_api::workload::Phase;
use lockstep_lifecycle::{Action, Plan};
use lockstep_sim::api::Verb;
use lockstep_sim::pods::leaving;
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::json;

fn groups(w: &Solo) -> Vec<PodGroup> {
    w.list::<PodGroup>()
}

fn name(group: &PodGroup) -> String {
    group.metadata.name.clone().unwrap()
}

fn min_count(group: &PodGroup) -> i32 {
    group
        .spec
        .scheduling_policy
        .gang
        .as_ref()
        .unwrap()
        .min_count
}

/// Native pod groups of the live pods.
fn joined(w: &Solo) -> BTreeSet<Option<String>> {
    let pods = w.pods().into_iter().filter(|p| !leaving(p));
    let group = |p: k8s_openapi::api::core::v1::Pod| p.spec?.scheduling_group?.pod_group_name;
    pods.map(group).collect()
}

/// The only native pod group, which all live pods have joined.
fn only(w: &Solo) -> PodGroup {
    let groups = groups(w);
    let [group] = groups.as_slice() else {
        panic!("{groups:#?}")
    };
    assert_eq!(joined(w), [Some(name(group))].into());
    group.clone()
}

#[test]
fn native_objects_of_a_gang_exist_before_its_pods() {
    let mut w = Solo::native(gang_with(2, &json!({"priorityClassName": "research"})));
    w.create_class("research", 7, "Never");
    w.settle();
    let store = w.store();
    let creates: Vec<WatchedKind> = store
        .log
        .iter()
        .filter(|write| write.verb == Verb::Create && &*write.key.namespace == "ns")
        .map(|write| write.kind)
        .collect();
    let first = |kind| creates.iter().position(|k| *k == kind).unwrap();
    let pods = first(WatchedKind::Pod);
    assert!(first(WatchedKind::NativeWorkload) < pods);
    assert!(first(WatchedKind::NativePodGroup) < pods);
    let group = store
        .log
        .iter()
        .find(|write| write.kind == WatchedKind::NativePodGroup && write.verb == Verb::Create);
    let group: PodGroup = serde_json::from_value((*group.unwrap().object).clone()).unwrap();
    drop(store);
    assert_eq!(min_count(&group), 2);
    let spec = &group.spec;
    assert_eq!(spec.priority_class_name.as_deref(), Some("research"));
    assert!(spec.priority.is_none() && spec.preemption_policy.is_none());
    assert!(spec.disruption_mode.as_ref().unwrap().all.is_some());
    let workloads = w.list::<Workload>();
    let [workload] = workloads.as_slice() else {
        panic!("{workloads:#?}")
    };
    let named = &spec.workload_ref.as_ref().unwrap().workload_name;
    assert_eq!(workload.metadata.name.as_ref(), Some(named));
    only(&w);
    assert!(w.is_idle(), "{}", w.story(30));
}

#[test]
fn min_count_is_one_as_soon_as_members_are_bound() {
    let mut w = Solo::native(gang(3));
    w.settle();
    assert_eq!(min_count(&only(&w)), 1);
}

#[test]
fn a_min_count_that_another_client_raised_is_restored() {
    let mut w = Solo::native(gang(2));
    w.settle();
    let key = Key::new("ns", name(&only(&w)));
    w.cluster.edit::<PodGroup>(&key, |group| {
        let gang = group.spec.scheduling_policy.gang.as_mut();
        gang.unwrap().min_count = 9;
    });
    w.settle();
    assert_eq!(min_count(&only(&w)), 1);
}

#[test]
fn a_restart_with_new_pods_gets_another_native_group() {
    let recreate = json!({"failurePolicy": {"rules": [
        {"name": "three", "match": {"exitCodes": {"operator": "In", "values": [3]}}, "action": "RecreateGang"}]}});
    let mut w = Solo::native(gang_with(2, &recreate));
    w.settle();
    let before = name(&only(&w));
    w.exit("g", 0, 3);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_ne!(name(&only(&w)), before);
}

#[test]
fn a_restart_in_place_keeps_the_native_group() {
    let mut w = Solo::native(gang(2));
    w.settle();
    let before = name(&only(&w));
    w.exit("g", 0, 3);
    w.settle();
    assert_eq!(name(&only(&w)), before);
}

#[test]
fn a_gang_with_finished_and_lost_members_completes() {
    let mut w = Solo::native(gang(2));
    w.settle();
    w.exit("g", 0, 0);
    w.settle();
    w.delete_pod("g", 1);
    w.settle();
    let group = groups(&w);
    assert!(group.iter().all(|g| min_count(g) == 1), "{group:#?}");
    for index in [0, 1] {
        w.exit_if_running("g", index, 0);
    }
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Succeeded));
}

#[test]
fn an_ended_or_suspended_workload_has_no_native_objects() {
    let mut w = Solo::native(gang(1));
    w.settle();
    w.edit(|spec| spec.suspend = true);
    w.settle();
    assert!(groups(&w).is_empty() && w.list::<Workload>().is_empty());
    w.edit(|spec| spec.suspend = false);
    w.settle();
    only(&w);
    w.exit("g", 0, 0);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Succeeded));
    assert!(groups(&w).is_empty() && w.list::<Workload>().is_empty());
}

#[test]
fn other_templates_get_another_native_workload() {
    let mut w = Solo::native(gang(2));
    w.settle();
    let before = w.list::<Workload>();
    w.edit(|spec| spec.suspend = true);
    w.settle();
    w.edit(|spec| {
        spec.groups[0].replicas = Some(1);
        spec.suspend = false;
    });
    w.settle();
    let after = w.list::<Workload>();
    assert_eq!((before.len(), after.len()), (1, 1));
    assert_ne!(before[0].metadata.name, after[0].metadata.name);
}

#[test]
fn support_that_begins_or_ends_affects_the_next_placement() {
    let mut w = Solo::native(gang(2));
    w.native_support(false);
    w.settle();
    assert!(groups(&w).is_empty());
    assert_eq!(joined(&w), [None].into());
    w.native_support(true);
    w.settle();
    assert_eq!(joined(&w), [None].into());
    for suspend in [true, false] {
        w.edit(|spec| spec.suspend = suspend);
        w.settle();
    }
    only(&w);
    w.native_support(false);
    w.settle();
    only(&w);
    assert!(w.is_idle(), "{}", w.story(30));
}

#[test]
fn pods_wait_until_the_api_server_was_tested() {
    let mut w = Solo::native(gang(1));
    let creates = |plan: &Plan| match plan {
        Plan::Act(actions) => actions
            .iter()
            .any(|a| matches!(a, Action::CreatePod { .. })),
        Plan::Idle(_) | Plan::Record(_) => false,
    };
    while !creates(&w.plan()) {
        w.pass();
        w.schedule();
    }
    let mut view = w.view();
    view.native.supported = None;
    assert!(!creates(&lockstep_lifecycle::decide(&view, w.now()).plan));
}

#[test]
fn some_gangs_get_no_native_group() {
    let basic = gang_with(2, &json!({"scheduling": {"policy": "Basic"}}));
    let mut own = gang(2);
    own["groups"][0]["template"]["spec"]["schedulingGroup"] = json!({"podGroupName": "mine"});
    let mut mixed = gang(1);
    let mut other = mixed["groups"][0].clone();
    other["name"] = json!("h");
    other["template"]["spec"]["schedulerName"] = json!("other");
    mixed["groups"].as_array_mut().unwrap().push(other);
    for spec in [basic, own, mixed] {
        let mut w = Solo::native(spec);
        w.settle();
        assert!(!w.pods().is_empty());
        assert!(groups(&w).is_empty() && w.list::<Workload>().is_empty());
    }
}

#[test]
fn a_foreign_group_of_the_name_stalls_the_workload_until_it_is_gone() {
    let with = |name: &str| {
        let mut w = Solo::native(gang(2));
        let group = json!({"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 5}}}});
        let group: PodGroup = serde_json::from_value(group).unwrap();
        w.cluster.create(&group);
        w
    };
    let mut first = with("unrelated");
    first.settle();
    let taken = joined(&first).pop_first().flatten().unwrap();
    let mut w = with(&taken);
    w.cluster.patience = chrono::TimeDelta::seconds(1);
    w.settle();
    assert_eq!(w.condition("Stalled"), "NameConflict");
    assert!(w.pods().is_empty());
    let key = Key::new("ns", &taken);
    w.delete(WatchedKind::NativePodGroup, &key);
    w.wait(120);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_crash_after_every_write_of_a_start_gives_the_same_end() {
    let end = |crash: Option<usize>| {
        let mut w = Solo::native(gang(2));
        if let Some(n) = crash {
            w.crash_after(n);
        }
        w.settle();
        let writes = w.line().writes;
        assert!(w.is_idle(), "{}", w.story(30));
        let state = (w.status().phase, min_count(&only(&w)), w.pods().len());
        (writes, state)
    };
    let (writes, whole) = end(None);
    assert_eq!(whole, (Some(Phase::Running), 1, 2));
    for crash in 0..writes {
        assert_eq!(end(Some(crash)).1, whole, "crash after write {crash}");
    }
}

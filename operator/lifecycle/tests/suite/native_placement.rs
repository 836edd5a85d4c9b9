//! Gangs that kube-scheduler places by their native groups.

use chrono::{SubsecRound as _, TimeDelta};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use lockstep_api::condition::find;
use lockstep_api::workload::{Backend, Phase};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::json;

fn is_pinned(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.is_some_and(|s| {
        s.affinity
            .as_ref()
            .is_some_and(|a| a.node_affinity.is_some())
    })
}

fn group_of(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    spec.scheduling_group.as_ref()?.pod_group_name.clone()
}

fn message(w: &Solo, type_: &str) -> String {
    let status = w.status();
    find(&status.conditions, type_).unwrap().message.clone()
}

#[test]
fn members_have_a_group_and_no_node_until_kube_scheduler_binds_them() {
    let mut w = Solo::kubernetes(gang(3));
    w.settle();
    let pods = w.pods();
    assert_eq!(pods.len(), 3);
    assert!(pods.iter().all(|p| !is_pinned(p) && group_of(p).is_some()));
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert!(w.is_idle(), "{}", w.story(30));
}

#[test]
fn a_gang_that_does_not_fit_waits_with_unbound_pods_and_holds_nothing() {
    let mut w = Solo::kubernetes(gang(3));
    for node in ["n0", "n1", "n2", "n3"] {
        w.capacity(node, 0);
    }
    w.settle();
    assert_eq!(w.pods().len(), 3);
    assert_eq!(w.status().phase, Some(Phase::Pending));
    assert_eq!(w.condition("Admitted"), "!Unschedulable");
    let message = message(&w, "Admitted");
    assert!(message.contains("kube-scheduler"), "{message}");
    for node in ["n0", "n1"] {
        w.capacity(node, 2);
    }
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_dead_member_restarts_in_place() {
    let mut w = Solo::kubernetes(gang(2));
    w.settle();
    let before = w.uids();
    w.exit("g", 0, 3);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_eq!(w.uids(), before);
    assert_eq!(w.status().restarts.total, 1);
}

#[test]
fn a_lost_member_gets_a_pod_without_a_node() {
    let mut w = Solo::kubernetes(gang(2));
    w.settle();
    w.delete_pod("g", 1);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert!(w.pods().iter().all(|p| !is_pinned(p)));
    assert!(w.is_idle(), "{}", w.story(30));
}

#[test]
fn a_suspended_gang_is_placed_again_by_another_group() {
    let mut w = Solo::kubernetes(gang(2));
    w.settle();
    let before = group_of(&w.pods()[0]);
    w.edit(|spec| spec.suspend = true);
    w.settle();
    assert!(w.pods().is_empty() && w.list::<PodGroup>().is_empty());
    w.edit(|spec| spec.suspend = false);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_ne!(group_of(&w.pods()[0]), before);
}

#[test]
fn a_gang_that_kube_scheduler_preempts_is_queued_whole_and_not_charged() {
    let mut w = Solo::kubernetes(gang(2));
    w.settle();
    let before = w.uids();
    w.take_pod("g", 0);
    w.settle();
    assert!(w.uids().values().all(|u| before.values().all(|b| b != u)));
    assert_eq!(w.status().preemptions, 1);
    assert_eq!(w.status().restarts.counted, 0);
    assert_eq!(w.status().phase, Some(Phase::Running));
}

/// Times of pods are whole seconds.
#[test]
fn a_gang_preempted_in_the_second_of_its_placement_is_queued_whole() {
    let mut w = Solo::kubernetes(gang(2));
    w.settle();
    let second = w.now().trunc_subsecs(0);
    w.edit_group("workload", |group| {
        let placement = group.status.as_mut().and_then(|s| s.placement.as_mut());
        placement.unwrap().decided_at = second + TimeDelta::milliseconds(999);
    });
    w.take_pod("g", 0);
    w.pass();
    assert_eq!(w.status().preemptions, 1);
    assert_eq!(w.status().phase, Some(Phase::Pending));
}

#[test]
fn a_gang_with_finished_and_lost_members_completes() {
    let mut w = Solo::kubernetes(gang(2));
    w.settle();
    w.exit("g", 0, 0);
    w.settle();
    w.delete_pod("g", 1);
    w.settle();
    for index in [0, 1] {
        w.exit_if_running("g", index, 0);
    }
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Succeeded));
}

#[test]
fn members_of_a_basic_workload_are_placed_one_by_one() {
    let mut w = Solo::kubernetes(gang_with(2, &json!({"scheduling": {"policy": "Basic"}})));
    w.settle();
    assert!(
        w.pods()
            .iter()
            .all(|p| !is_pinned(p) && group_of(p).is_none())
    );
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_gang_that_kube_scheduler_cannot_place_is_refused_in_words() {
    let mut unsupported = Solo::kubernetes(gang(2));
    unsupported.native_support(false);
    let mut own = gang(2);
    own["groups"][0]["template"]["spec"]["schedulingGroup"] = json!({"podGroupName": "mine"});
    let level = json!({"scheduling": {"topology": {"key": "rack", "mode": "Required"}}});
    let topology = Solo::kubernetes(gang_with(2, &level));
    let refuses = |mut w: Solo, part: &str| {
        w.settle();
        assert!(w.pods().is_empty());
        assert_eq!(w.condition("Stalled"), "NativeGroupsUnavailable");
        let message = message(&w, "Stalled");
        assert!(message.contains(part), "{message}");
    };
    refuses(unsupported, "feature gate GenericWorkload");
    let own_backend = gang_with(2, &json!({"scheduling": {"backend": "Kubernetes"}}));
    let mut overridden = Solo::new(own_backend);
    overridden.native_support(false);
    refuses(overridden, "spec.scheduling.backend is Kubernetes");
    refuses(Solo::kubernetes(own), "no schedulingGroup");
    refuses(topology, "scheduling.topology");
}

#[test]
fn a_workload_overrides_the_backend_of_the_installation() {
    let own = |backend: &str| gang_with(2, &json!({"scheduling": {"backend": backend}}));
    let mut kubernetes = Solo::new(own("Kubernetes"));
    kubernetes.native_support(true);
    kubernetes.settle();
    let pods = kubernetes.pods();
    assert!(pods.iter().all(|p| !is_pinned(p) && group_of(p).is_some()));
    assert_eq!(kubernetes.status().backend, Some(Backend::Kubernetes));
    let mut both = Solo::kubernetes(own("Both"));
    both.settle();
    let pods = both.pods();
    assert!(pods.iter().all(|p| is_pinned(p) && group_of(p).is_some()));
    assert_eq!(both.status().backend, Some(Backend::Both));
    let mut lockstep = Solo::kubernetes(own("Lockstep"));
    lockstep.settle();
    let pods = lockstep.pods();
    assert!(pods.iter().all(|p| is_pinned(p) && group_of(p).is_none()));
    assert_eq!(lockstep.status().backend, None);
    for w in [&mut kubernetes, &mut both, &mut lockstep] {
        assert_eq!(w.status().phase, Some(Phase::Running));
        assert!(w.is_idle(), "{}", w.story(30));
    }
}

#[test]
fn an_overridden_backend_changes_while_the_workload_is_suspended() {
    let mut w = Solo::native(gang(2));
    w.settle();
    for backend in [Backend::Kubernetes, Backend::Lockstep, Backend::Both] {
        w.edit(|spec| spec.suspend = true);
        w.settle();
        w.edit(|spec| {
            spec.scheduling.backend = Some(backend);
            spec.suspend = false;
        });
        w.settle();
        assert_eq!(w.status().phase, Some(Phase::Running), "{backend:?}");
        let grouped = w.pods().iter().all(|p| group_of(p).is_some());
        assert_eq!(grouped, backend != Backend::Lockstep, "{backend:?}");
        let groups = w.list::<PodGroup>().len();
        assert_eq!(groups, usize::from(grouped), "{backend:?}");
    }
}

#[test]
fn waiting_pods_of_another_backend_are_created_anew_without_a_node() {
    let mut w = Solo::new(gang(2));
    for node in ["n1", "n2", "n3"] {
        w.capacity(node, 0);
    }
    while w.pods().len() < 2 {
        w.control();
        w.schedule();
    }
    assert!(w.pods().iter().all(is_pinned));
    w.switch_to_kubernetes();
    w.delete(WatchedKind::Node, &Key::new("", "n0"));
    w.capacity("n1", 2);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(40));
    assert!(
        w.pods()
            .iter()
            .all(|p| !is_pinned(p) && group_of(p).is_some())
    );
}

#[test]
fn a_gang_placed_by_another_backend_keeps_its_pods_and_replaces_a_lost_member() {
    let mut w = Solo::new(gang(2));
    for (node, members) in [("n0", 1), ("n1", 1), ("n2", 0), ("n3", 0)] {
        w.capacity(node, members);
    }
    w.settle();
    let (before, lost) = (w.uids(), w.node_of("g", 1));
    w.switch_to_kubernetes();
    w.settle();
    assert_eq!(w.uids(), before);
    w.delete(WatchedKind::Node, &Key::new("", &lost));
    w.capacity("n2", 1);
    w.settle();
    let kept = |uid: &&String| before.values().any(|b| b == *uid);
    assert_eq!(w.uids().values().filter(kept).count(), 1, "{}", w.story(40));
    assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(40));
    assert!(w.is_idle(), "{}", w.story(30));
}

#[test]
fn a_crash_after_every_write_of_a_native_start_gives_the_same_end() {
    let end = |crash: Option<usize>| {
        let mut w = Solo::kubernetes(gang(2));
        if let Some(n) = crash {
            w.crash_after(n);
        }
        w.settle();
        let writes = w.line().writes;
        assert!(w.is_idle(), "{}", w.story(30));
        (writes, (w.status().phase, w.pods().len()))
    };
    let (writes, whole) = end(None);
    assert_eq!(whole, (Some(Phase::Running), 2));
    for crash in 0..writes {
        assert_eq!(end(Some(crash)).1, whole, "crash after write {crash}");
    }
}

#[test]
fn pods_get_supervisors_where_all_agents_can_supervise() {
    let mut spec = gang(2);
    spec["failurePolicy"] = json!({});
    spec["suspend"] = json!(true);
    spec["groups"][0]["template"]["spec"]["containers"][0]["command"] = json!(["train"]);
    let mut w = Solo::kubernetes(spec);
    // The agents report what they can do.
    w.settle();
    w.edit(|spec| spec.suspend = false);
    w.settle();
    let before = w.uids();
    w.exit("g", 0, 3);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_eq!(w.uids(), before);
}

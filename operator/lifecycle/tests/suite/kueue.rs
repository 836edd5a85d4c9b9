//! Quota from Kueue: hold, admission, eviction, return of quota.

use lockstep_api::TrainingWorkload;
use lockstep_api::condition::{find, is_true, types};
use lockstep_api::kueue::{
    FINALIZER, KueueWorkload, POD_SET_LABEL, PRIORITY_LABEL, WORKLOAD_ANNOTATION, kueue_conditions,
};
use lockstep_api::workload::{CheckpointOccasion, Phase};
use lockstep_lifecycle::LifecycleSettings;
use lockstep_sim::api::{Refused, Rule, Verb};
use lockstep_sim::pods::leaving;
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::json;

const POOL: (&str, &str) = ("pool", "a100");

/// A held workload of two members, and a flavor of all nodes.
fn held() -> Solo {
    let mut w = Solo::kueue(gang(2));
    w.create_flavor("a100", POOL);
    for node in w.node_names() {
        w.cluster.edit(
            &Key::new("", node),
            |n: &mut k8s_openapi::api::core::v1::Node| {
                let labels = n.metadata.labels.get_or_insert_default();
                labels.insert(POOL.0.into(), POOL.1.into());
            },
        );
    }
    w.settle();
    w
}

/// The same after its admission.
fn running() -> Solo {
    let mut w = held();
    let key = w.quota_key();
    w.admit(&key, "a100");
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(40));
    w
}

fn quota(w: &Solo) -> KueueWorkload {
    let all = w.list::<KueueWorkload>();
    let [only] = all.as_slice() else {
        panic!("{all:#?}")
    };
    only.clone()
}

/// Status and reason of a condition of the Kueue Workload.
fn said(w: &Solo, type_: &str) -> String {
    let status = quota(w).status;
    find(&status.conditions, type_).map_or("absent".into(), |c| {
        format!("{} {}", c.status.as_str(), c.reason)
    })
}

#[test]
fn a_workload_with_a_queue_is_held_and_requests_quota_for_all_its_members() {
    let w = held();
    assert_eq!(w.status().phase, Some(Phase::Pending));
    assert_eq!(w.condition(types::ADMITTED), "!WaitingForQuota");
    assert_eq!(w.condition(types::SUSPENDED), "WaitingForQuota");
    assert!(w.pods().is_empty() && w.groups().is_empty());
    let quota = quota(&w);
    assert_eq!(quota.spec.queue_name, "q");
    let sets: Vec<_> = quota
        .spec
        .pod_sets
        .iter()
        .map(|s| (&*s.name, s.count))
        .collect();
    assert_eq!(sets, [("g", 2)]);
    let container = &quota.spec.pod_sets[0].template["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "8");
    assert_eq!(quota.metadata.finalizers, Some(vec![FINALIZER.to_owned()]));
}

#[test]
fn an_admitted_workload_runs_on_nodes_of_its_flavor() {
    let mut w = held();
    w.cluster.edit(
        &Key::new("", "n0"),
        |n: &mut k8s_openapi::api::core::v1::Node| {
            n.metadata.labels.get_or_insert_default().clear();
        },
    );
    let key = w.quota_key();
    w.admit(&key, "a100");
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(40));
    for pod in w.pods() {
        let spec = pod.spec.as_ref().unwrap();
        assert_ne!(spec.node_name.as_deref(), Some("n0"));
        assert_eq!(spec.node_selector.as_ref().unwrap()[POOL.0], POOL.1);
        let tolerations = spec.tolerations.iter().flatten();
        assert_eq!(
            tolerations
                .filter(|t| t.key.as_deref() == Some(POOL.0))
                .count(),
            1
        );
        assert_eq!(pod.metadata.labels.as_ref().unwrap()[POD_SET_LABEL], "g");
        let annotations = pod.metadata.annotations.as_ref().unwrap();
        assert_eq!(annotations[WORKLOAD_ANNOTATION], *key.name);
    }
    assert_eq!(said(&w, kueue_conditions::PODS_READY), "True Started");
}

#[test]
fn quota_of_an_evicted_workload_returns_when_its_last_pod_is_gone() {
    let mut w = running();
    let key = w.quota_key();
    w.evict_quota(&key, "Preempted");
    w.until("the stop", |w| w.pods().iter().all(leaving));
    let mut returned = false;
    for _ in 0..60 {
        returned = !is_true(
            &quota(&w).status.conditions,
            kueue_conditions::QUOTA_RESERVED,
        );
        assert!(!returned || w.pods().is_empty());
        w.rounds(1);
    }
    assert!(returned);
    assert_eq!(said(&w, kueue_conditions::QUOTA_RESERVED), "False Pending");
    assert_eq!(said(&w, kueue_conditions::ADMITTED), "False NoReservation");
    assert_eq!(said(&w, kueue_conditions::REQUEUED), "True Preempted");
    assert_eq!(quota(&w).status.admission, None);
    w.admit(&key, "a100");
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn the_end_of_a_workload_finishes_and_releases_its_quota() {
    let mut w = running();
    for index in 0..2 {
        w.exit("g", index, 0);
    }
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Succeeded));
    assert_eq!(said(&w, kueue_conditions::FINISHED), "True Succeeded");
    assert_eq!(quota(&w).metadata.finalizers.unwrap_or_default().len(), 0);
}

#[test]
fn a_suspended_workload_returns_its_quota_and_requests_it_anew() {
    let mut w = running();
    w.edit(|spec| spec.suspend = true);
    w.settle();
    assert!(w.pods().is_empty());
    assert!(w.list::<KueueWorkload>().is_empty());
    w.edit(|spec| spec.suspend = false);
    w.settle();
    assert_eq!(w.condition(types::ADMITTED), "!WaitingForQuota");
    assert_eq!(quota(&w).spec.queue_name, "q");
}

#[test]
fn a_deleted_workload_releases_its_quota_after_its_pods() {
    let mut w = running();
    let key = w.key().clone();
    w.delete(WatchedKind::TrainingWorkload, &key);
    w.settle();
    assert!(w.pods().is_empty());
    assert!(w.list::<KueueWorkload>().is_empty(), "{}", w.story(40));
}

#[test]
fn without_kueue_the_label_of_a_queue_changes_nothing() {
    let mut w = Solo::new(gang(2));
    let key = w.key().clone();
    w.set_queue(&key, Some("q"));
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_eq!(w.status().kueue, None);
    assert!(w.list::<KueueWorkload>().is_empty());
    let pods = w.pods();
    assert!(pods.iter().all(|pod| {
        !pod.metadata
            .labels
            .as_ref()
            .unwrap()
            .contains_key(POD_SET_LABEL)
    }));
}

#[test]
fn a_restart_in_place_is_invisible_to_kueue() {
    let mut w = running();
    let before = quota(&w).metadata.resource_version;
    let pods = w.uids();
    w.exit("g", 1, 3);
    w.settle();
    assert_eq!(w.restarts(), [1, 1]);
    assert_eq!(w.uids(), pods);
    assert_eq!(quota(&w).metadata.resource_version, before);
}

#[test]
fn a_gang_that_runs_continues_while_kueue_is_not_served_and_a_new_one_waits() {
    let mut w = running();
    let pods = w.uids();
    w.serve_kueue(None);
    w.rounds(20);
    assert_eq!(w.uids(), pods);
    w.exit("g", 0, 3);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    w.serve_kueue(Some("v1beta2"));
    w.settle();
    assert_eq!(w.uids(), pods);

    let mut w = held();
    w.serve_kueue(None);
    w.settle();
    assert!(w.pods().is_empty());
    let message = &w.status().message;
    assert!(message.contains("does not serve"), "{message}");
}

#[test]
fn a_gang_whose_kueue_workload_is_gone_stops_and_requests_quota_anew() {
    let mut w = running();
    let key = w.quota_key();
    let before = quota(&w).metadata.uid;
    w.serve_kueue(None);
    w.remove(WatchedKind::KueueWorkload, &key);
    w.serve_kueue(Some("v1beta2"));
    w.settle();
    assert!(w.pods().is_empty());
    assert_ne!(quota(&w).metadata.uid, before);
    assert_eq!(w.condition(types::ADMITTED), "!WaitingForQuota");
}

#[test]
fn a_gang_whose_kueue_workload_is_gone_stops_although_none_can_be_created() {
    let mut w = running();
    let key = w.quota_key();
    w.serve_kueue(None);
    w.remove(WatchedKind::KueueWorkload, &key);
    w.store().admission.rules.push(Rule {
        kind: WatchedKind::KueueWorkload,
        verb: Verb::Create,
        name: None,
        answer: Refused::new(500, "InternalError", "failed calling webhook"),
    });
    w.serve_kueue(Some("v1beta2"));
    w.rounds(60);
    assert!(w.pods().is_empty(), "{}", w.story(40));
}

#[test]
fn a_gang_that_runs_continues_if_its_flavor_changes() {
    let mut w = running();
    let pods = w.uids();
    w.edit(|spec| {
        let template = &mut spec.groups[0].template.0;
        let selector = [(POOL.0.to_owned(), POOL.1.to_owned())].into();
        template.spec.as_mut().unwrap().node_selector = Some(selector);
    });
    w.settle();
    let key = w.quota_key();
    w.admit(&key, "a100");
    w.settle();
    assert_ne!(w.uids(), pods, "other pods need other quota");
    let pods = w.uids();
    w.remove(WatchedKind::ResourceFlavor, &Key::new("", "a100"));
    w.create_flavor("a100", (POOL.0, "h100"));
    w.settle();
    assert_eq!(w.uids(), pods);
    assert_eq!(said(&w, kueue_conditions::FINISHED), "absent");
}

#[test]
fn a_gang_that_runs_keeps_its_quota_without_its_priority_class() {
    let mut w = running();
    let before = quota(&w).metadata.uid;
    let key = w.key().clone();
    w.cluster.edit(&key, |w: &mut TrainingWorkload| {
        let labels = w.metadata.labels.get_or_insert_default();
        labels.insert(PRIORITY_LABEL.into(), "deleted".into());
    });
    let node = w.node_of("g", 0);
    w.lose(&node);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(40));
    assert_eq!(quota(&w).metadata.uid, before);
    let quota = w.quota_key();
    w.evict_quota(&quota, "Preempted");
    w.settle();
    // What is left are the pods of the lost node.
    assert!(w.pods().iter().all(leaving) && w.list::<KueueWorkload>().is_empty());
}

#[test]
fn an_admitted_workload_keeps_its_queue_and_a_held_one_follows_its_label() {
    let mut w = running();
    let key = w.key().clone();
    w.set_queue(&key, None);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_eq!(w.status().kueue.unwrap().queue, "q");

    let mut w = held();
    let key = w.key().clone();
    w.set_queue(&key, Some("other"));
    w.settle();
    assert_eq!(quota(&w).spec.queue_name, "other");
    w.set_queue(&key, None);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(30));
    assert!(w.list::<KueueWorkload>().is_empty());
}

#[test]
fn members_that_have_ended_return_their_quota() {
    let mut w = running();
    w.exit("g", 1, 0);
    w.settle();
    assert_eq!(quota(&w).status.reclaimed("g"), 1);
}

#[test]
fn a_pod_on_a_lost_node_does_not_hold_quota() {
    let mut w = running();
    let node = w.node_of("g", 0);
    w.lose(&node);
    w.settle();
    let key = w.quota_key();
    w.evict_quota(&key, "NodeFailures");
    w.settle();
    assert_eq!(said(&w, kueue_conditions::QUOTA_RESERVED), "False Pending");
    assert_eq!(said(&w, kueue_conditions::REQUEUED), "True NodeFailures");
}

#[test]
fn other_pods_change_a_kueue_workload_without_quota_and_replace_one_with_quota() {
    let mut w = held();
    let before = quota(&w).metadata.uid;
    w.edit(|spec| spec.groups[0].replicas = Some(3));
    w.settle();
    assert_eq!(quota(&w).spec.pod_sets[0].count, 3);
    assert_eq!(quota(&w).metadata.uid, before);
    let key = w.quota_key();
    w.admit(&key, "a100");
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    w.edit(|spec| spec.groups[0].replicas = Some(4));
    w.settle();
    assert_eq!(quota(&w).spec.pod_sets[0].count, 4);
    assert_ne!(quota(&w).metadata.uid, before);
    assert!(w.pods().is_empty());
}

#[test]
fn an_eviction_by_kueue_awaits_a_checkpoint() {
    let checkpoint = json!({"checkpoint": {"onRequest": {"timeoutSeconds": 30}}});
    let mut w = Solo::kueue(gang_with(2, &checkpoint));
    w.restart_with(LifecycleSettings {
        kueue: true,
        supervisor_image: Some("lockstep-supervisor".into()),
        ..LifecycleSettings::default()
    });
    w.create_of_kueue(
        WatchedKind::ResourceFlavor,
        json!({"metadata": {"name": "any"}}),
    );
    w.edit(|spec| {
        let template = &mut spec.groups[0].template.0;
        let container = &mut template.spec.as_mut().unwrap().containers[0];
        container.command = Some(vec!["train".into()]);
    });
    w.settle();
    let key = w.quota_key();
    w.admit(&key, "any");
    w.settle();
    w.evict_quota(&key, "Preempted");
    w.until("the request", |w| {
        let status = w.status();
        status
            .checkpoint_requests()
            .any(|(_, r)| r.reason == CheckpointOccasion::Suspend)
    });
    w.settle();
    assert!(w.pods().is_empty());
    assert_eq!(said(&w, kueue_conditions::QUOTA_RESERVED), "False Pending");
}

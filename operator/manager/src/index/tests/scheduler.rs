//! Inputs of the scheduler, and its wake-ups.

use super::super::kinds::{Claims, Quotas, Volumes};
use super::*;

#[tokio::test]
async fn the_scheduler_ignores_summaries_and_wakes_for_the_ledger() {
    let f = Fixture::new();
    let mut tw = workload("w");
    tw["status"] = json!({"ready": "0/2", "groups": [{"name": "workers", "ready": 0}]});
    f.see::<Workloads>(&tw);
    let name = lockstep_api::names::pod_group_name("w", "uid-w", "workload");
    f.see::<PodGroups>(
        &json!({"apiVersion": "scheduling.lockstep.dev/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "ml", "uid": "g", "resourceVersion": "7", "ownerReferences": owned_by("w")},
        "spec": {"workloadRef": {"workloadName": "w", "templateName": "workload"}, "gangKey": "workload",
            "schedulingPolicy": {"gang": {"minCount": 1}}}}),
    );
    assert!(f.scheduler_woken().await);
    tw["status"] =
        json!({"ready": "1/2", "phase": "Running", "groups": [{"name": "workers", "ready": 1}]});
    f.see::<Workloads>(&tw);
    assert!(!f.scheduler_woken().await, "a summary");
    for (path, value) in [
        (
            "/status/gangs",
            json!([{"key": "workload", "started": true}]),
        ),
        ("/status/groups/0/completedIndexes", json!("0")),
        (
            "/metadata/annotations",
            json!({"training.lockstep.dev/last-checkpoint": TIME}),
        ),
        ("/metadata/generation", json!(2)),
        ("/metadata/deletionTimestamp", json!(TIME)),
    ] {
        let (parent, key) = path.rsplit_once('/').unwrap();
        tw.pointer_mut(parent).unwrap()[key] = value;
        f.see::<Workloads>(&tw);
        assert!(f.scheduler_woken().await, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn storage_events_wake_the_gangs_with_such_claims_and_quota_events_their_namespace() {
    let f = Fixture::new();
    let claim = |name: &str, notes: Value| {
        json!({"metadata": {"name": name, "namespace": "ml", "uid": format!("uid-{name}"), "annotations": notes},
            "spec": {"volumeName": "v"}})
    };
    let bound = json!({"pv.kubernetes.io/bind-completed": "yes"});
    let mut with_claim = workload("w");
    with_claim["spec"]["groups"][0]["template"]["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    f.see::<Workloads>(&with_claim);
    let mut group = pod_group("w", "n1");
    group["metadata"]["name"] = json!(lockstep_api::names::pod_group_name(
        "w", "uid-w", "workload"
    ));
    f.see::<PodGroups>(&group);
    let missing = |f: &Fixture| {
        let state = f.index.read();
        let gang = state.gang_inputs.values().next().unwrap();
        gang.workload.templates[0].storage.missing.len()
    };
    f.scheduler_woken().await;
    assert_eq!(missing(&f), 1);
    f.see::<Claims>(&claim("other", bound.clone()));
    assert!(!f.scheduler_woken().await, "nobody mounts it");
    f.see::<Claims>(&claim("data", bound));
    assert!(f.scheduler_woken().await);
    let volume = json!({"metadata": {"name": "v"}, "spec": {"claimRef": {"namespace": "ml", "name": "data"}}});
    f.see::<Volumes>(&volume);
    assert_eq!((f.scheduler_woken().await, missing(&f)), (true, 0));
    f.see::<Claims>(&claim(
        "data",
        json!({"pv.kubernetes.io/bind-completed": "yes", "more": "words"}),
    ));
    assert!(
        !f.scheduler_woken().await,
        "nothing that matters has changed"
    );
    for (namespace, woken) in [("web", false), ("ml", true)] {
        let quota = json!({"metadata": {"name": "q", "namespace": namespace}, "status": {"hard": {"pods": "1"}}});
        f.see::<Quotas>(&quota);
        assert_eq!(f.scheduler_woken().await, woken, "{namespace}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_admission_makes_of_pods_counts_until_the_spec_is_another() {
    let f = Fixture::new();
    let key = Key::new("ml", "w");
    f.see::<Workloads>(&workload("w"));
    let mut group = pod_group("w", "n1");
    let name = lockstep_api::names::pod_group_name("w", "uid-w", "workload");
    group["metadata"]["name"] = json!(name);
    f.see::<PodGroups>(&group);
    let template = |f: &Fixture| {
        let state = f.index.read();
        let gang = state.gang_inputs.values().next().unwrap();
        let template = &gang.workload.templates[0];
        let cpu = template.requests.as_ref().unwrap().get("cpu");
        (cpu, template.not_admitted.is_some())
    };
    assert_eq!(template(&f), (0, true), "nobody has asked yet");
    let pod =
        json!({"spec": {"containers": [{"name": "t", "resources": {"requests": {"cpu": "1"}}}]}});
    let pod: k8s_openapi::api::core::v1::Pod = received(&pod);
    let pods = [("workers".to_owned(), Admission::As(Box::new(pod.into())))].into();
    let hash = |f: &Fixture| lockstep_lifecycle::spec_hash(&f.index.read().workloads[&key].spec);
    f.scheduler_woken().await;
    f.index.record_admitted(&key, "uid-other", &hash(&f), &pods);
    f.index.record_admitted(&key, "uid-w", "another", &pods);
    assert!(!f.scheduler_woken().await, "of another workload, or spec");
    f.index.record_admitted(&key, "uid-w", &hash(&f), &pods);
    assert_eq!(
        (f.scheduler_woken().await, template(&f)),
        (true, (1000, false))
    );
    f.index.record_admitted(&key, "uid-w", &hash(&f), &pods);
    assert!(!f.scheduler_woken().await, "that was known");
    let mut scaled = workload("w");
    scaled["metadata"]["generation"] = json!(2);
    scaled["spec"]["groups"][0]["replicas"] = json!(2);
    f.see::<Workloads>(&scaled);
    assert_eq!(template(&f), (1000, false), "the pods are the same");
    let mut other = scaled.clone();
    other["metadata"]["generation"] = json!(3);
    other["spec"]["groups"][0]["template"]["spec"]["hostNetwork"] = json!(true);
    f.see::<Workloads>(&other);
    assert_eq!(template(&f), (0, true));
}

#[tokio::test]
async fn an_unused_topology_key_is_removed_when_a_new_key_appears() {
    let f = Fixture::new();
    let with_key = |workload: &str, key: &str| {
        let mut group = pod_group(workload, "n1");
        group["spec"]["schedulingConstraints"] =
            json!({"topology": [{"key": key, "mode": "Required"}]});
        group
    };
    f.see::<PodGroups>(&with_key("a", "old"));
    f.see::<PodGroups>(&with_key("b", "kept"));
    let gone = received(&with_key("a", "old"));
    Feed::<PodGroups>::default().handle(&f.index, Event::Delete(gone));
    f.see::<PodGroups>(&with_key("c", "new"));
    let state = f.index.read();
    let has = ["old", "kept", "new"].map(|key| state.model.has_topology_key(key));
    assert_eq!(has, [false, true, true]);
}

#[tokio::test]
async fn all_levels_of_a_gang_are_used_if_none_was_before() {
    let f = Fixture::new();
    let mut group = pod_group("w", "n1");
    let level = |key: &str| json!({"key": key, "mode": "Required"});
    group["spec"]["schedulingConstraints"] = json!({"topology": [level("block"), level("rack")]});
    f.see::<PodGroups>(&group);
    let state = f.index.read();
    let has = ["block", "rack"].map(|key| state.model.has_topology_key(key));
    assert_eq!(has, [true, true]);
}

#[tokio::test(start_paused = true)]
async fn gangs_without_a_class_count_as_victims_for_what_the_default_class_says() {
    let f = Fixture::new();
    f.see::<Workloads>(&workload("w"));
    let mut group = pod_group("w", "n1");
    group["metadata"]["name"] = json!(lockstep_api::names::pod_group_name(
        "w", "uid-w", "workload"
    ));
    f.see::<PodGroups>(&group);
    let counts_for = || {
        let state = f.index.read();
        state
            .gang_inputs
            .values()
            .next()
            .unwrap()
            .preemption_priority
    };
    for (default, expected) in [(true, Some(50)), (false, None)] {
        f.see::<PriorityClasses>(&json!({"metadata": {"name": "usual",
            "annotations": {"training.lockstep.dev/preemption-priority": "50"}},
            "value": 7, "globalDefault": default}));
        assert_eq!(counts_for(), expected);
    }
}

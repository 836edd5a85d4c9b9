//! Requests of a pass: preconditions, taken names, refusals.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::fake_api::FakeApi;
use chrono::{DateTime, Utc};
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::ids::Uid;
use lockstep_api::member::Member;
use lockstep_api::names::labels;
use lockstep_api::scheduling::PreemptionPolicy;
use lockstep_api::tier::Tier;
use lockstep_api::{RestartOrder, RestartOrderSpec, TrainingWorkload};
use lockstep_lifecycle::view::{
    KueueView, NativeView, Priority, RejectionKind, Target, WorkloadId,
};
use lockstep_lifecycle::{Action, LifecycleSettings, Object, WorkloadView};
use lockstep_manager::api::error::ErrorClass;
use lockstep_manager::api::{Actor, Pace};
use lockstep_manager::clock::SystemClock;
use lockstep_manager::workload::act::{ActionResults, ActionSender};
use lockstep_model::Admission;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const PODS: &str = "api/v1/pods";

fn view() -> WorkloadView {
    let workload: TrainingWorkload = serde_json::from_value(json!({
        "apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": "llama", "namespace": "ml", "uid": "w"},
        "spec": {"groups": [{"name": "workers", "template": {"spec": {"containers": [{"name": "t", "image": "i"}]}}}]},
    }))
    .unwrap();
    WorkloadView {
        id: WorkloadId::read(&workload).unwrap(),
        workload: Arc::new(workload),
        pods: Vec::new(),
        disrupted: BTreeMap::new(),
        gangs: BTreeMap::new(),
        pod_groups: BTreeMap::new(),
        scheduling: None,
        kueue: KueueView::default(),
        native: NativeView::default(),
        service: None,
        order: None,
        nodes: BTreeMap::new(),
        agents: BTreeMap::new(),
        agent_pods: BTreeMap::new(),
        all_agents_supervise: false,
        priority: Priority::Resolved {
            value: 0,
            preemption: PreemptionPolicy::Never,
        },
        dry_run: None,
        rejections: Vec::new(),
        failed: None,
        settings: Arc::new(LifecycleSettings::default()),
    }
}

fn pod(index: i32, owner: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{index}"), "namespace": "ml",
        "ownerReferences": [{"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
            "name": "llama", "uid": owner, "controller": true}]},
        "spec": {"containers": [{"name": "t", "image": "i"}]}})
}

fn create(index: i32) -> Action {
    let pod: Pod = serde_json::from_value(pod(index, "w")).unwrap();
    Action::CreatePod {
        member: Member::new("workers", 0, index),
        pod: Box::new(pod),
    }
}

fn sender(api: &FakeApi, in_flight: usize) -> ActionSender {
    let actor = Actor {
        read: api.client(),
        write: api.client(),
        in_flight,
        pace: Pace::new(in_flight),
    };
    ActionSender {
        actor,
        stop: CancellationToken::new(),
        clock: Arc::new(SystemClock),
    }
}

async fn act(api: &FakeApi, in_flight: usize, actions: Vec<Action>) -> ActionResults {
    sender(api, in_flight)
        .act(&view(), actions, now(), || false)
        .await
}

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_795_000_000, 0).unwrap()
}

#[tokio::test]
async fn after_a_quota_refuses_a_pod_no_more_are_created() {
    let api = FakeApi::new();
    api.refuse(
        "p2",
        StatusCode::FORBIDDEN,
        "Forbidden",
        "pods \"p2\" is forbidden: exceeded quota: gpus",
    );
    let acted = act(&api, 1, (0..6).map(create).collect()).await;
    assert_eq!(api.all(PODS).len(), 2);
    let [rejection] = acted.rejections.as_slice() else {
        panic!("{acted:?}")
    };
    assert_eq!(
        (&rejection.target, rejection.kind),
        (
            &Target::Pod(Member::new("workers", 0, 2)),
            RejectionKind::QuotaExceeded
        )
    );
    assert!(rejection.message.contains("exceeded quota: gpus"));
}

#[tokio::test]
async fn a_create_whose_answer_was_lost_is_adopted_when_it_is_repeated() {
    let api = FakeApi::new();
    api.put(PODS, pod(0, "w"));
    let acted = act(&api, 8, vec![create(0), create(1)]).await;
    assert_eq!(
        (api.all(PODS).len(), acted.rejections.len(), acted.failure),
        (2, 0, None)
    );
    assert_eq!(acted.accepted.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn where_each_create_takes_its_time_a_pass_ends_and_leaves_the_rest_to_the_next() {
    let api = FakeApi::new();
    api.takes(Duration::from_millis(1200));
    let acted = act(&api, 4, (0..500).map(create).collect()).await;
    assert!(acted.unfinished, "{acted:?}");
    let made = api.all(PODS).len();
    assert_eq!(
        (made, acted.accepted.len()),
        (20, 20),
        "five rounds of four"
    );
}

#[tokio::test]
async fn an_object_of_another_owner_with_the_same_name_is_refused_and_not_changed() {
    let api = FakeApi::new();
    let mut foreign = pod(0, "w");
    foreign["metadata"]["ownerReferences"] = json!([]);
    api.put(PODS, foreign);
    let acted = act(&api, 8, vec![create(0)]).await;
    assert_eq!(acted.rejections[0].kind, RejectionKind::NameTaken);
    assert_eq!(api.writes(), ["POST /api/v1/namespaces/ml/pods"]);
}

#[tokio::test]
async fn a_name_left_over_from_an_earlier_workload_or_on_its_way_out_is_waited_for() {
    let mut leaving = pod(0, "w");
    leaving["metadata"]["deletionTimestamp"] = json!("2026-11-21T10:00:00Z");
    let mut ended = pod(0, "w");
    ended["status"] = json!({"phase": "Failed"});
    for found in [pod(0, "earlier"), leaving, ended] {
        let api = FakeApi::new();
        api.put(PODS, found);
        let acted = act(&api, 8, vec![create(0)]).await;
        assert_eq!(acted.failure.map(|f| f.class), Some(ErrorClass::Conflict));
    }
}

#[tokio::test]
async fn a_pod_that_has_taken_the_name_meanwhile_is_not_touched() {
    let api = FakeApi::new();
    api.put(PODS, pod(0, "w"));
    let (name, uid) = ("p0".to_owned(), "another".parse::<Uid>().unwrap());
    let before = api.all(PODS);
    let acted = act(
        &api,
        8,
        vec![
            Action::Unpublish {
                name: name.clone(),
                uid: uid.clone(),
            },
            Action::Publish {
                name: name.clone(),
                uid: uid.clone(),
            },
            Action::MarkDisrupted {
                name: name.clone(),
                uid: uid.clone(),
                message: "m".into(),
            },
            Action::DeletePod {
                name: name.clone(),
                uid: uid.clone(),
                grace: None,
            },
            Action::EndPod {
                name: name.clone(),
                uid: uid.clone(),
            },
            Action::RemoveGate { name, uid },
        ],
    )
    .await;
    assert_eq!(
        (api.all(PODS), acted.failure, api.writes().len()),
        (before, None, 6)
    );
}

#[tokio::test]
async fn an_invalid_pod_is_a_verdict_on_the_template_and_a_forbidden_one_is_not() {
    let api = FakeApi::new();
    let pods: Vec<Pod> = (0..2)
        .map(|i| serde_json::from_value(pod(i, "w")).unwrap())
        .collect();
    let whole: Pod = serde_json::from_value(pod(2, "w")).unwrap();
    let ask = || {
        vec![Action::DryRun {
            needed: true,
            spec_hash: "h".into(),
            pods: pods.clone(),
            restart_all: Box::new(whole.clone()),
        }]
    };
    api.refuse("p0", StatusCode::FORBIDDEN, "Forbidden", "exceeded quota");
    let verdict = act(&api, 8, ask()).await.dry_runs.unwrap().dry_run;
    assert_eq!((verdict.spec_hash.as_str(), verdict.invalid), ("h", None));
    assert_eq!(verdict.tier, Tier::RestartAll);
    api.refuse(
        "p2",
        StatusCode::UNPROCESSABLE_ENTITY,
        "Invalid",
        "restartPolicyRules[0].action: Unsupported value: \"RestartAllContainers\"",
    );
    let verdict = act(&api, 8, ask()).await.dry_runs.unwrap().dry_run;
    assert_eq!(
        (verdict.tier, verdict.invalid),
        (Tier::RestartRules, None),
        "a gate that is off is no fault of the template"
    );
    api.refuse(
        "p1",
        StatusCode::UNPROCESSABLE_ENTITY,
        "Invalid",
        "spec.containers[0].image: Required value",
    );
    let verdict = act(&api, 8, ask()).await.dry_runs.unwrap().dry_run;
    assert_eq!(
        verdict.invalid.as_deref(),
        Some("spec.containers[0].image: Required value")
    );
    assert!(api.all(PODS).is_empty());
}

#[tokio::test]
async fn a_webhook_without_dry_run_gives_no_verdict_and_a_failed_webhook_blocks_only_pods() {
    let api = FakeApi::new();
    let labelled = |index: i32, group: &str| -> Pod {
        let mut pod = pod(index, "w");
        pod["metadata"]["labels"] = json!({labels::GROUP: group});
        serde_json::from_value(pod).unwrap()
    };
    let ask = |needed| {
        vec![Action::DryRun {
            needed,
            spec_hash: "h".into(),
            pods: vec![labelled(0, "a"), labelled(1, "b")],
            restart_all: Box::new(labelled(2, "a")),
        }]
    };
    let why = "admission webhook \"mesh\" does not support dry run";
    api.refuse("p1", StatusCode::BAD_REQUEST, "BadRequest", why);
    let judged = act(&api, 8, ask(true)).await.dry_runs.unwrap();
    let verdict = (judged.dry_run.invalid, judged.dry_run.tier);
    assert_eq!(verdict, (None, Tier::Plain));
    assert!(judged.pods["a"].pod().is_some());
    assert_eq!(judged.pods["b"], Admission::Unsupported(why.into()));
    let why = "failed calling webhook \"mesh\"";
    api.refuse(
        "p1",
        StatusCode::INTERNAL_SERVER_ERROR,
        "InternalError",
        why,
    );
    let failed = act(&api, 8, ask(true)).await;
    assert!(failed.dry_runs.is_none() && failed.failure.is_some());
    let words = format!("cannot validate Pod: {why}");
    assert_eq!(failed.failed.map(|(_, message)| message), Some(words));
    let waiting = act(&api, 8, ask(false)).await;
    let judged = waiting.dry_runs.unwrap();
    assert!(waiting.failure.is_none() && judged.dry_run.failed);
    assert_eq!(judged.pods["a"], Admission::Failed(why.into()));
}

#[tokio::test]
async fn a_change_that_is_refused_is_remembered_until_it_is_accepted() {
    let api = FakeApi::new();
    let order = RestartOrder::new(
        "llama",
        RestartOrderSpec {
            workload_uid: "w".into(),
            domains: Vec::new(),
        },
    );
    let mut held = json!(order);
    held["metadata"]["namespace"] = json!("ml");
    held["spec"]["workloadUID"] = json!("x");
    api.put("apis/training.lockstep.dev/v1alpha1/restartorders", held);
    let update = || {
        let object = Object::RestartOrder(Box::new(order.clone()));
        vec![Action::Update {
            object,
            uid: "uid-llama".parse().unwrap(),
            resource_version: "1".parse().unwrap(),
        }]
    };
    api.refuse(
        "llama",
        StatusCode::UNPROCESSABLE_ENTITY,
        "Invalid",
        "spec.domains: Invalid value",
    );
    let acted = act(&api, 1, update()).await;
    let target = Target::Object("RestartOrder", "llama".into());
    assert_eq!(
        (&acted.rejections[0].target, acted.rejections[0].kind),
        (&target, RejectionKind::Invalid)
    );
    api.accept("llama");
    assert_eq!(act(&api, 1, update()).await.accepted, [target]);
}

#[tokio::test]
async fn an_object_recreated_under_its_name_is_not_patched_and_counts_as_a_conflict() {
    let api = FakeApi::new();
    let order = RestartOrder::new(
        "llama",
        RestartOrderSpec {
            workload_uid: "w".into(),
            domains: Vec::new(),
        },
    );
    let mut recreated = json!(order);
    recreated["metadata"]["namespace"] = json!("ml");
    recreated["metadata"]["uid"] = json!("second");
    recreated["spec"]["workloadUID"] = json!("x");
    let resource = "apis/training.lockstep.dev/v1alpha1/restartorders";
    api.put(resource, recreated);
    let before = api.all(resource);
    // A server restored from a backup repeats versions.
    let update = Action::Update {
        object: Object::RestartOrder(Box::new(order)),
        uid: "first".parse().unwrap(),
        resource_version: "1".parse().unwrap(),
    };
    let acted = act(&api, 1, vec![update]).await;
    assert_eq!(api.all(resource), before);
    assert_eq!(acted.failure.map(|f| f.class), Some(ErrorClass::Conflict));
    assert_eq!(acted.rejections, []);
}

#[tokio::test]
async fn a_stopping_manager_sends_no_more() {
    let api = FakeApi::new();
    let sender = sender(&api, 8);
    sender.stop.cancel();
    sender.act(&view(), vec![create(0)], now(), || false).await;
    assert_eq!(api.writes(), Vec::<String>::new());
}

//! Requests of the scheduler, and its handling of failed and missing responses.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use lockstep_api::scheduling::{Placement, PodGroupStatus};
use lockstep_scheduler::{Memory, PodRef, StatusWrite, Step, Vacated};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use tower::{BoxError, service_fn};

use crate::api::Pace;
use crate::api::clients::Clients;
use crate::events::Events;
use crate::index::Key;
use crate::scheduler::act::StepSender;
use crate::scheduler::metrics::SchedulerMetrics;

/// Method, path with query, body.
type Call = (Method, String, Value);
/// Code and body. `None` cuts the connection.
type Answer = fn(&Call) -> Option<(u16, Value)>;

/// A sender whose requests a function answers, and the requests.
fn actor(answer: Answer) -> (StepSender, Arc<Mutex<Vec<Call>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = calls.clone();
    let service = service_fn(move |request: Request<Body>| {
        let seen = seen.clone();
        async move {
            let (head, body) = request.into_parts();
            let bytes = body.collect().await?.to_bytes();
            let call = (
                head.method,
                head.uri.to_string(),
                serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            );
            let answer = answer(&call);
            seen.lock().push(call);
            let (code, value) = answer.ok_or("cut off")?;
            let body = Body::from(serde_json::to_vec(&value)?);
            Ok::<_, BoxError>(Response::builder().status(code).body(body)?)
        }
    });
    let client = Client::new(service, "ml");
    let (events, _) = Events::channel(Counter::default());
    let clients = Clients {
        read: client.clone(),
        write: client.clone(),
        lease: client,
        pace: Pace::new(64),
    };
    (
        StepSender::new(&clients, events, SchedulerMetrics::default()),
        calls,
    )
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}),
    )
}

/// The API server's message (`registry/core/pod/storage/eviction.go`).
fn refused_by_budget() -> (u16, Value) {
    let (code, mut status) = failure(429, "TooManyRequests");
    status["details"] = json!({"causes": [{"reason": "DisruptionBudget",
        "message": "The disruption budget web needs 1 healthy pods and has 1 currently"}]});
    (code, status)
}

fn group(version: &str) -> Value {
    json!({"apiVersion": "scheduling.lockstep.dev/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": "a", "namespace": "ml", "uid": "u", "resourceVersion": version},
        "spec": {"workloadRef": {"workloadName": "a", "templateName": "t"}, "gangKey": "workload",
            "schedulingPolicy": {"basic": {}}}})
}

fn write(vacated: Option<Vacated>) -> Step {
    let placement = Placement {
        members: 1,
        ..Placement::default()
    };
    Step::Status(Box::new(StatusWrite {
        key: Key::new("ml", "a"),
        uid: "pg-a".parse().unwrap(),
        resource_version: "1".parse().ok(),
        read: PodGroupStatus::default(),
        status: PodGroupStatus {
            placement: Some(placement),
            ..PodGroupStatus::default()
        },
        vacated,
        preemptor: None,
    }))
}

fn pod_ref() -> PodRef {
    PodRef {
        key: Key::new("ml", "p"),
        uid: "u".parse().unwrap(),
    }
}

fn remembered(memory: &Memory) -> Option<&str> {
    let group = memory.written(&Key::new("ml", "a"))?;
    Some(group.resource_version.as_ref()?.as_str())
}

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_795_000_000, 0).unwrap()
}

#[tokio::test]
async fn a_status_is_written_with_the_version_it_was_decided_from_and_remembered() {
    let (actor, calls) = actor(|_| Some((200, group("9"))));
    let mut memory = Memory::default();
    let acted = actor.act(vec![write(None)], &mut memory, now()).await;
    assert!(acted.unsure.is_empty() && !acted.again);
    assert_eq!(remembered(&memory), Some("9"));
    let (method, path, body) = calls.lock().remove(0);
    assert_eq!(method, Method::PATCH);
    assert!(
        path.starts_with("/apis/scheduling.lockstep.dev/v1alpha1/namespaces/ml/podgroups/a/status"),
        "{path}"
    );
    assert_eq!(
        (
            &body["metadata"]["resourceVersion"],
            &body["metadata"]["uid"]
        ),
        (&json!("1"), &json!("pg-a"))
    );
    assert_eq!(body["status"]["placement"]["members"], 1);
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_looked_up_before_the_next_cycle() {
    let (actor, _) = actor(|(method, path, _)| {
        let list = json!({"kind": "PodGroupList", "apiVersion": "scheduling.lockstep.dev/v1alpha1", "metadata": {},
            "items": [group("9")]});
        (method == Method::GET && path.contains("fieldSelector=metadata.name%3Da"))
            .then_some((200, list))
    });
    let mut memory = Memory::default();
    let acted = actor.act(vec![write(None)], &mut memory, now()).await;
    assert_eq!(acted.unsure, BTreeSet::from([Key::new("ml", "a")]));
    assert!(
        actor
            .resolve_unsure(acted.unsure, &mut memory)
            .await
            .is_empty()
    );
    assert_eq!(remembered(&memory), Some("9"));
}

#[tokio::test]
async fn what_cannot_be_looked_up_stays_unsure() {
    let (actor, _) = actor(|_| None);
    let unsure = BTreeSet::from([Key::new("ml", "a")]);
    assert_eq!(
        actor
            .resolve_unsure(unsure.clone(), &mut Memory::default())
            .await,
        unsure
    );
}

#[tokio::test]
async fn capacity_is_not_reassigned_while_the_server_has_a_pod_missing_from_the_watch() {
    let answer: Answer = |(method, ..)| {
        let owner = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload", "name": "a",
            "uid": "w", "controller": true});
        let pod = |uid: &str, owners: &[&Value]| json!({"metadata": {"name": uid, "uid": uid, "ownerReferences": owners}});
        let mut foreign = owner.clone();
        foreign["apiVersion"] = json!("example.com/v1");
        // Any user who may create pods may set any labels, and an owner in another group.
        let items = [
            pod("late", &[&owner]),
            pod("copy", &[]),
            pod("odd", &[&foreign]),
        ];
        let list = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {},
            "items": items});
        Some((
            200,
            if method == Method::GET {
                list
            } else {
                group("9")
            },
        ))
    };
    for (seen, sent) in [("early", 1), ("late", 2)] {
        let (actor, calls) = actor(answer);
        let vacated = Vacated {
            workload_uid: "w".parse().unwrap(),
            observed: [seen.parse().unwrap()].into(),
        };
        let acted = actor
            .act(vec![write(Some(vacated))], &mut Memory::default(), now())
            .await;
        assert_eq!((calls.lock().len(), acted.again), (sent, sent == 1));
    }
}

#[tokio::test]
async fn a_budget_stops_an_eviction_until_force_is_allowed() {
    for (by_force, methods) in [
        (false, vec![Method::POST]),
        (true, vec![Method::POST, Method::DELETE]),
    ] {
        let (actor, calls) = actor(|(method, ..)| {
            if method == Method::POST {
                Some(refused_by_budget())
            } else {
                Some((200, json!({"kind": "Status", "status": "Success"})))
            }
        });
        let step = Step::Evict {
            preemptor: Key::new("ml", "a"),
            pod: pod_ref(),
            by_force,
        };
        let acted = actor.act(vec![step], &mut Memory::default(), now()).await;
        let sent: Vec<Method> = calls.lock().iter().map(|c| c.0.clone()).collect();
        assert_eq!((sent, acted.again), (methods, !by_force));
        let uid = |body: &Value| {
            body.pointer("/deleteOptions/preconditions/uid")
                .or(body.pointer("/preconditions/uid"))
                .cloned()
        };
        assert!(
            calls.lock().iter().all(|c| uid(&c.2) == Some(json!("u"))),
            "another pod of that name is not touched"
        );
    }
}

#[tokio::test]
async fn a_conflict_is_decided_again_and_a_deleted_object_is_no_failure() {
    let (conflicting, _) = actor(|_| Some(failure(409, "Conflict")));
    let (gone, _) = actor(|_| Some(failure(404, "NotFound")));
    let now = now();
    let acted = conflicting
        .act(vec![write(None)], &mut Memory::default(), now)
        .await;
    assert!(acted.again && acted.unsure.is_empty());
    let acted = gone
        .act(vec![write(None)], &mut Memory::default(), now)
        .await;
    assert!(!acted.again && acted.unsure.is_empty());
}

fn moves(name: &str, from: Option<&str>, to: Option<&str>) -> Step {
    let status = |node: Option<&str>| PodGroupStatus {
        placement: node.map(|node| Placement {
            members: 1,
            nodes: vec![lockstep_api::scheduling::NodePlacement {
                node: node.into(),
                members: vec!["g/0/0".into()],
            }],
            ..Placement::default()
        }),
        ..PodGroupStatus::default()
    };
    Step::Status(Box::new(StatusWrite {
        key: Key::new("ml", name),
        uid: name.parse().unwrap(),
        resource_version: "1".parse().ok(),
        read: status(from),
        status: status(to),
        vacated: None,
        preemptor: None,
    }))
}

#[tokio::test]
async fn a_node_whose_release_was_skipped_is_not_assigned_to_a_third_gang() {
    let (actor, calls) = actor(|(_, path, _)| {
        Some(if path.contains("/podgroups/loss/") {
            failure(409, "Conflict")
        } else {
            (200, group("9"))
        })
    });
    let steps = vec![
        moves("gain", None, Some("n2")),
        moves("mid", Some("n2"), Some("n1")),
        moves("loss", Some("n1"), None),
    ];
    let mut memory = Memory::default();
    actor.act(steps, &mut memory, now()).await;
    let sent: Vec<String> = calls.lock().iter().map(|c| c.1.clone()).collect();
    assert!(
        !sent.iter().any(|p| p.contains("/podgroups/mid/")),
        "{sent:?}"
    );
    assert!(
        !sent.iter().any(|p| p.contains("/podgroups/gain/")),
        "{sent:?}"
    );
}

#[tokio::test]
async fn a_server_that_is_overloaded_says_nothing_about_budgets() {
    let overload: Answer = |_| Some((429, json!("Too many requests, please try again later.")));
    let budget: Answer = |_| Some(refused_by_budget());
    for (answer, says, again) in [(overload, None, true), (budget, Some(false), false)] {
        let (actor, calls) = actor(answer);
        let ask = Step::DryRunEviction(pod_ref());
        let mut memory = Memory::default();
        let acted = actor.act(vec![ask], &mut memory, now()).await;
        assert_eq!((memory.may_evict("u", now()), acted.again), (says, again));
        let evict = Step::Evict {
            preemptor: Key::new("ml", "a"),
            pod: pod_ref(),
            by_force: true,
        };
        actor.act(vec![evict], &mut memory, now()).await;
        let deletes = calls
            .lock()
            .iter()
            .filter(|c| c.0 == Method::DELETE)
            .count();
        assert_eq!(deletes, usize::from(!again));
    }
}

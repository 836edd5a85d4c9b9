//! Requests of the manager's own clients, answered from the store.

use std::sync::Arc;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::{BoxError, service_fn};

use super::answer::Refused;
use super::kinds::{api_version, kind_name, served};
use super::log::Verb;
use super::removal::DeleteOptions;
use super::store::{Patch, Store};

/// The connection between the manager and the API server.
#[derive(Debug, Default)]
pub struct Line {
    /// Number of writes until the connection is cut; then no request is answered. `None`: it works.
    pub cut_after: Option<usize>,
    /// Number of next writes whose responses are lost.
    pub lost_answers: usize,
    /// Number of executed writes.
    pub writes: usize,
}

/// A client of the server with the name of an actor. Requires a tokio runtime.
pub(crate) fn client(store: &Arc<Mutex<Store>>, line: &Arc<Mutex<Line>>, who: &str) -> Client {
    let (store, line, who) = (store.clone(), line.clone(), who.to_owned());
    let service = service_fn(move |request: Request<Body>| {
        let (store, line, who) = (store.clone(), line.clone(), who.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let reads = head.method == Method::GET;
            if line.lock().cut_after == Some(0) {
                return Err(BoxError::from("cut off"));
            }
            let answer = handle(&mut store.lock(), &who, &head, &body);
            let (code, value) = answer.unwrap_or_else(|no| (no.code, no.status()));
            if !reads && !line.lock().answers() {
                return Err(BoxError::from("the answer was lost"));
            }
            let body = Body::from(serde_json::to_vec(&value)?);
            Ok::<_, BoxError>(Response::builder().status(code).body(body)?)
        }
    });
    Client::new(service, "default")
}

impl Line {
    /// Counts a write. Returns true if its response arrives.
    fn answers(&mut self) -> bool {
        self.writes += 1;
        if let Some(left) = &mut self.cut_after {
            *left = left.saturating_sub(1);
        }
        let lost = self.lost_answers > 0;
        self.lost_answers = self.lost_answers.saturating_sub(1);
        !lost
    }
}

/// Resource of a path.
struct Target {
    kind: WatchedKind,
    namespace: String,
    name: Option<String>,
    subresource: Option<String>,
}

fn handle(
    store: &mut Store,
    who: &str,
    head: &http::request::Parts,
    body: &[u8],
) -> Result<(u16, Value), Refused> {
    let query: Vec<(String, String)> =
        form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
    let asked = |name: &str| {
        query
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    };
    let target = target(head.uri.path())
        .ok_or_else(|| Refused::not_found(format_args!("path {}", head.uri.path())))?;
    let mut sent: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let kind = target.kind;
    let key = |name: &str| Key::new(&target.namespace, name);
    match (
        &head.method,
        target.name.as_deref(),
        target.subresource.as_deref(),
    ) {
        (&Method::GET, None, None) => Ok((200, list(store, &target, &asked))),
        (&Method::POST, None, None) => {
            if !target.namespace.is_empty() {
                sent["metadata"]["namespace"] = json!(target.namespace);
            }
            let created = store.create(who, kind, sent, asked("dryRun") == Some("All"))?;
            Ok((201, Value::clone(&created)))
        }
        (&Method::POST, Some(name), Some("eviction")) => {
            let dry_run = asked("dryRun") == Some("All");
            store.evict(who, &key(name), &options(&sent["deleteOptions"]), dry_run)?;
            Ok((
                201,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
            ))
        }
        (&Method::PATCH, Some(name), part @ (None | Some("status"))) => {
            let media = head.headers.get(http::header::CONTENT_TYPE);
            let strategic = media.is_some_and(|m| {
                m.to_str()
                    .is_ok_and(|m| m.contains("strategic-merge-patch"))
            });
            let patch = if strategic {
                Patch::Strategic(sent)
            } else {
                Patch::Merge(sent)
            };
            let patched = store.patch(who, kind, &key(name), &patch, part.is_some())?;
            Ok((200, Value::clone(&patched)))
        }
        (&Method::DELETE, Some(name), None) => {
            if let Some(old) = store.raw(kind, &key(name)) {
                store.admission.refuse(kind, Verb::Delete, old)?;
            }
            let deleted = store.delete(who, kind, &key(name), &options(&sent))?;
            let left = store.raw(kind, &key(name)).is_some();
            let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Success"});
            Ok((200, if left { Value::clone(&deleted) } else { gone }))
        }
        _ => Err(Refused::new(405, "MethodNotAllowed", head.uri.to_string())),
    }
}

fn options(sent: &Value) -> DeleteOptions {
    let text = |field: &str| sent["preconditions"][field].as_str().map(str::to_owned);
    DeleteOptions {
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        grace: sent["gracePeriodSeconds"].as_i64(),
    }
}

fn list<'q>(store: &Store, target: &Target, asked: &impl Fn(&str) -> Option<&'q str>) -> Value {
    let name = asked("fieldSelector").and_then(|s| s.strip_prefix("metadata.name="));
    let labels: Vec<(&str, &str)> = asked("labelSelector")
        .into_iter()
        .flat_map(|s| s.split(','))
        .filter_map(|s| s.split_once('='))
        .collect();
    let items: Vec<&Value> = store
        .all(target.kind)
        .filter(|(key, object)| {
            (target.namespace.is_empty() || *key.namespace == *target.namespace)
                && name.is_none_or(|name| *key.name == *name)
                && labels
                    .iter()
                    .all(|(label, value)| object["metadata"]["labels"][label] == *value)
        })
        .map(|(_, object)| &**object)
        .collect();
    json!({"kind": format!("{}List", kind_name(target.kind)), "apiVersion": api_version(target.kind),
        "metadata": {"resourceVersion": store.version().to_string()}, "items": items})
}

fn target(path: &str) -> Option<Target> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ((*version).to_owned(), rest),
        ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let text = |at: usize| rest.get(at).map(|part| (*part).to_owned());
    Some(Target {
        kind: served(&version, rest.first()?)?,
        namespace: namespace.to_owned(),
        name: text(1),
        subresource: text(2),
    })
}

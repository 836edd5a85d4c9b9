//! A minimal API server for the manager: objects in a map, lists, watches, merge patches with
//! resourceVersion, deletes. No validation, defaulting or admission.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body as Answer;
use futures_util::{StreamExt as _, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::{BoxError, service_fn};

/// Creation time of all objects, near the start of the tests' clocks.
const CREATED: &str = "2026-11-18T11:06:40Z";

type Address = (String, String, String);

#[derive(Default)]
struct Store {
    objects: BTreeMap<Address, Value>,
    /// Changes: new version, resource, watch event.
    log: Vec<(u64, String, Value)>,
    /// Method and path of received writes.
    writes: Vec<String>,
    /// Resources of received requests.
    requested: BTreeSet<String>,
    /// Answers to discovery, by path.
    discovery: BTreeMap<String, Value>,
    /// Code, reason and message of refused creates and changes, by object name.
    refused: BTreeMap<String, (StatusCode, &'static str, &'static str)>,
    takes: Duration,
    /// Path suffixes whose next write is executed without a response.
    lost: Vec<&'static str>,
    stream_failure: Option<StreamFailure>,
    paged_lists: usize,
}

/// How a streamed list fails.
#[derive(Clone, Copy, Debug)]
pub enum StreamFailure {
    /// Refused with code, reason and message.
    Refused(StatusCode, &'static str, &'static str),
    /// An ERROR event with code, reason and message after the first object.
    Error(StatusCode, &'static str, &'static str),
    /// The stream closes after the first object.
    Closed,
}

/// A fake API server. Clones share it.
#[derive(Clone)]
pub struct FakeApi {
    store: Arc<Mutex<Store>>,
    changed: watch::Sender<usize>,
}

struct Parsed {
    resource: String,
    namespace: String,
    name: Option<String>,
    subresource: Option<String>,
}

impl FakeApi {
    pub fn new() -> Self {
        Self {
            store: Arc::default(),
            changed: watch::Sender::new(0),
        }
    }

    pub fn client(&self) -> Client {
        let api = self.clone();
        Client::new(
            service_fn(move |request| api.clone().answer(request)),
            "default",
        )
    }

    /// Creates or replaces an object, as another client.
    pub fn put(&self, resource: &str, mut object: Value) {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let address = (
            resource.to_owned(),
            text(&object["metadata"]["namespace"]),
            text(&object["metadata"]["name"]),
        );
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", address.2));
        }
        self.save(address, object);
    }

    /// Changes an object, as another client.
    pub fn merge(&self, resource: &str, name: &str, patch: &Value) {
        let found = self
            .store
            .lock()
            .objects
            .iter()
            .find(|((r, _, n), _)| r == resource && n == name)
            .map(|(address, object)| (address.clone(), object.clone()));
        let (address, mut object) = found.expect("the object exists");
        merge(&mut object, patch);
        self.save(address, object);
    }

    /// Deletes an object, as another client.
    pub fn delete(&self, resource: &str, name: &str) {
        let addresses: Vec<Address> = self.store.lock().objects.keys().cloned().collect();
        let found = addresses
            .iter()
            .find(|(r, _, n)| r == resource && n == name)
            .expect("the object exists");
        self.remove(found);
    }

    pub fn all(&self, resource: &str) -> Vec<Value> {
        let store = self.store.lock();
        store
            .objects
            .iter()
            .filter(|((r, ..), _)| r == resource)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Refuses creates and changes of this object from now on.
    pub fn refuse(
        &self,
        name: &str,
        code: StatusCode,
        reason: &'static str,
        message: &'static str,
    ) {
        self.store
            .lock()
            .refused
            .insert(name.to_owned(), (code, reason, message));
    }

    /// Ends the refusal.
    pub fn accept(&self, name: &str) {
        self.store.lock().refused.remove(name);
    }

    /// Duration of each write from now on.
    pub fn takes(&self, time: Duration) {
        self.store.lock().takes = time;
    }

    /// Executes the next write to such a path without a response.
    pub fn lose_answer(&self, path_end: &'static str) {
        self.store.lock().lost.push(path_end);
    }

    pub fn fail_streamed_lists(&self, failure: StreamFailure) {
        self.store.lock().stream_failure = Some(failure);
    }

    pub fn paged_lists(&self) -> usize {
        self.store.lock().paged_lists
    }

    pub fn writes(&self) -> Vec<String> {
        self.store.lock().writes.clone()
    }

    /// Serves one resource of a group, as discovery tells.
    pub fn serve(&self, group: &str, version: &str, resource: &str, kind: &str) {
        let group_version = format!("{group}/{version}");
        let version = json!({"groupVersion": group_version, "version": version});
        let groups = json!({"kind": "APIGroupList", "apiVersion": "v1",
            "groups": [{"name": group, "versions": [version], "preferredVersion": version}]});
        let resources = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
            "resources": [{"name": resource, "singularName": "", "namespaced": true, "kind": kind, "verbs": []}]});
        let mut store = self.store.lock();
        store.discovery.insert("apis/".into(), groups);
        let path = format!("apis/{group_version}/");
        store.discovery.insert(path, resources);
    }

    /// Resources that were read, watched or written.
    pub fn requested(&self) -> BTreeSet<String> {
        self.store.lock().requested.clone()
    }

    /// Waits for a condition on the objects of a resource.
    pub async fn until(&self, resource: &str, holds: impl Fn(&[Value]) -> bool) {
        let mut changed = self.changed.subscribe();
        while !holds(&self.all(resource)) {
            changed.changed().await.expect("the server lives");
        }
    }

    fn save(&self, address: Address, mut object: Value) -> Value {
        let mut store = self.store.lock();
        let version = store.log.len() as u64 + 1;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let kind = if store.objects.contains_key(&address) {
            "MODIFIED"
        } else {
            "ADDED"
        };
        store.log.push((
            version,
            address.0.clone(),
            json!({"type": kind, "object": object}),
        ));
        store.objects.insert(address, object.clone());
        drop(store);
        self.changed.send_modify(|n| *n += 1);
        object
    }

    fn remove(&self, address: &Address) -> Option<Value> {
        let mut store = self.store.lock();
        let object = store.objects.remove(address)?;
        let version = store.log.len() as u64 + 1;
        store.log.push((
            version,
            address.0.clone(),
            json!({"type": "DELETED", "object": object}),
        ));
        drop(store);
        self.changed.send_modify(|n| *n += 1);
        Some(object)
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Answer>, BoxError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let at = parse(head.uri.path());
        self.store.lock().requested.insert(at.resource.clone());
        let query = head.uri.query().unwrap_or_default();
        if query.contains("watch=true") {
            let from = query
                .split('&')
                .find_map(|p| p.strip_prefix("resourceVersion=")?.parse().ok())
                .unwrap_or(0);
            if query.contains("sendInitialEvents=true") {
                return Ok(self.stream_list(at.resource)?);
            }
            return Ok(Response::new(self.watch(at.resource, from, Vec::new())));
        }
        let body = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&body)?
        };
        if head.method != Method::GET {
            self.store
                .lock()
                .writes
                .push(format!("{} {}", head.method, head.uri.path()));
            let time = self.store.lock().takes;
            tokio::time::sleep(time).await;
        }
        let (mut code, mut value) = self.handle(&head.method, &at, query, body);
        let mut lost = self.store.lock().lost.clone();
        if let Some(at) = lost.iter().position(|end| head.uri.path().ends_with(end))
            && head.method != Method::GET
        {
            lost.remove(at);
            self.store.lock().lost = lost;
            (code, value) = failure(StatusCode::GATEWAY_TIMEOUT, "Timeout", "no answer in time");
        }
        Ok(Response::builder()
            .status(code)
            .body(Answer::from(value.to_string()))?)
    }

    fn handle(
        &self,
        method: &Method,
        at: &Parsed,
        query: &str,
        mut body: Value,
    ) -> (StatusCode, Value) {
        if let Some(answer) = self.store.lock().discovery.get(&at.resource) {
            return (StatusCode::OK, answer.clone());
        }
        let Some(name) = at
            .name
            .clone()
            .or_else(|| Some(body["metadata"]["name"].as_str()?.to_owned()))
        else {
            // Discovery requests have no limit.
            self.store.lock().paged_lists += usize::from(query.contains("limit="));
            return (StatusCode::OK, self.list(&at.resource));
        };
        let address = (at.resource.clone(), at.namespace.clone(), name);
        let present = self.store.lock().objects.get(&address).cloned();
        match (method, present) {
            (&Method::POST | &Method::PATCH, _)
                if self.store.lock().refused.contains_key(&address.2) =>
            {
                let (code, reason, message) = self.store.lock().refused[&address.2];
                failure(code, reason, message)
            }
            (&Method::POST, Some(_)) => failure(StatusCode::CONFLICT, "AlreadyExists", "exists"),
            (&Method::POST, None) if query.contains("dryRun=All") => (StatusCode::CREATED, body),
            (&Method::POST, None) => {
                body["metadata"]["uid"] = json!(format!("uid-{}", address.2));
                body["metadata"]["namespace"] = json!(at.namespace);
                body["metadata"]["creationTimestamp"] = json!(CREATED);
                (StatusCode::CREATED, self.save(address, body))
            }
            (_, None) => failure(StatusCode::NOT_FOUND, "NotFound", "not found"),
            (&Method::GET, Some(object)) => (StatusCode::OK, object),
            (&Method::PATCH, Some(object)) if !same_uid(&body["metadata"]["uid"], &object) => {
                let (code, mut status) = failure(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    "Invalid",
                    "metadata.uid: field is immutable",
                );
                status["details"] = json!({"causes": [{"reason": "FieldValueInvalid",
                    "message": "field is immutable", "field": "metadata.uid"}]});
                (code, status)
            }
            (&Method::PATCH, Some(mut object)) => {
                let expected = &body["metadata"]["resourceVersion"];
                if !expected.is_null() && *expected != object["metadata"]["resourceVersion"] {
                    return failure(
                        StatusCode::CONFLICT,
                        "Conflict",
                        "the object has been modified",
                    );
                }
                if at.subresource.is_none() {
                    body.as_object_mut().map(|o| o.remove("status"));
                }
                merge(&mut object, &body);
                (StatusCode::OK, self.save(address, object))
            }
            (&Method::DELETE, Some(object))
                if !same_uid(&body["preconditions"]["uid"], &object) =>
            {
                failure(StatusCode::CONFLICT, "Conflict", "precondition failed: uid")
            }
            (&Method::DELETE, Some(_)) => {
                (StatusCode::OK, self.remove(&address).unwrap_or_default())
            }
            _ => failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", ""),
        }
    }

    fn list(&self, resource: &str) -> Value {
        let version = self.store.lock().log.len().to_string();
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": self.all(resource)})
    }

    /// Streams a list as watch events, or fails as configured.
    fn stream_list(self, resource: String) -> http::Result<Response<Answer>> {
        let (from, failure_wanted) = {
            let store = self.store.lock();
            (store.log.len() as u64, store.stream_failure)
        };
        let added = |object| json!({"type": "ADDED", "object": object});
        let mut first: Vec<Value> = self.all(&resource).into_iter().map(added).collect();
        let closed = match failure_wanted {
            None => {
                let annotations = json!({"k8s.io/initial-events-end": "true"});
                let metadata =
                    json!({"resourceVersion": from.to_string(), "annotations": annotations});
                first.push(json!({"type": "BOOKMARK",
                    "object": {"kind": "Any", "apiVersion": "v1", "metadata": metadata}}));
                return Ok(Response::new(self.watch(resource, from, first)));
            }
            Some(StreamFailure::Refused(code, reason, message)) => {
                let (code, status) = failure(code, reason, message);
                return Response::builder()
                    .status(code)
                    .body(status.to_string().into());
            }
            Some(StreamFailure::Error(code, reason, message)) => {
                let (_, status) = failure(code, reason, message);
                first.truncate(1);
                first.push(json!({"type": "ERROR", "object": status}));
                first
            }
            Some(StreamFailure::Closed) => {
                first.truncate(1);
                first
            }
        };
        let lines = closed.iter().map(|event| format!("{event}\n"));
        Ok(Response::new(Answer::from_stream(stream::iter(
            lines.map(Ok::<_, Infallible>).collect::<Vec<_>>(),
        ))))
    }

    /// Sends these events, then the changes since a version.
    fn watch(self, resource: String, from: u64, first: Vec<Value>) -> Answer {
        let changed = self.changed.subscribe();
        let first = stream::iter(first.into_iter().map(|e| Ok(format!("{e}\n"))));
        let following = stream::unfold((self, changed, from), move |(api, mut changed, from)| {
            let resource = resource.clone();
            async move {
                loop {
                    let next = {
                        let store = api.store.lock();
                        store
                            .log
                            .iter()
                            .find(|(v, r, _)| *v > from && *r == resource)
                            .map(|(v, _, e)| (*v, e.clone()))
                    };
                    if let Some((version, event)) = next {
                        return Some((
                            Ok::<_, Infallible>(format!("{event}\n")),
                            (api, changed, version),
                        ));
                    }
                    changed.changed().await.ok()?;
                }
            }
        });
        Answer::from_stream(first.chain(following))
    }
}

fn parse(path: &str) -> Parsed {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (prefix, rest) = parts.split_at(if parts.first() == Some(&"api") {
        2
    } else {
        3.min(parts.len())
    });
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let text = |at: usize| rest.get(at).map(|s| (*s).to_owned());
    Parsed {
        resource: format!(
            "{}/{}",
            prefix.join("/"),
            rest.first().copied().unwrap_or_default()
        ),
        namespace: namespace.to_owned(),
        name: text(1),
        subresource: text(2),
    }
}

fn failure(code: StatusCode, reason: &str, message: &str) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
        "message": message, "code": code.as_u16()});
    (code, status)
}

fn same_uid(wanted: &Value, object: &Value) -> bool {
    wanted.is_null() || *wanted == object["metadata"]["uid"]
}

fn merge(target: &mut Value, patch: &Value) {
    let (Value::Object(fields), Value::Object(patch)) = (&mut *target, patch) else {
        *target = patch.clone();
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

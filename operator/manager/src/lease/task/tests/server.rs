//! A server with one Lease and scripted behaviour for each candidate.

use std::collections::HashMap;
use std::sync::Arc;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower::{BoxError, service_fn};

use crate::clock::{Clock, SystemClock};
use crate::lease::Tenure;

/// Treatment of the requests of one candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weather {
    /// Executes and answers them.
    Fair,
    /// Delays them: [`Server::land`] executes them, and answers if the client still waits.
    Held,
    /// Executes them and loses the response.
    Lost,
    Refused(u16),
}

/// Treatments under which a leader cannot renew.
pub(super) const BAD: [Weather; 5] = [
    Weather::Held,
    Weather::Lost,
    Weather::Refused(409),
    Weather::Refused(429),
    Weather::Refused(500),
];

type Answer = (u16, Value);

/// One Lease, and the other writes received.
#[derive(Clone, Default)]
pub(super) struct Server(pub(super) Arc<Mutex<State>>);

#[derive(Default)]
pub(super) struct State {
    lease: Option<Value>,
    version: u64,
    /// By candidate, for writes and for reads, unless fair.
    weather: HashMap<(&'static str, bool), Weather>,
    /// Delayed writes, and the channels of their responses.
    pub(super) held: Vec<(Method, Value, oneshot::Sender<Answer>)>,
    /// Times and clients of writes other than to the Lease.
    work: Vec<(Instant, &'static str)>,
    /// Each process's view of its own leadership.
    pub(super) tenures: Vec<(&'static str, Tenure)>,
    /// Changes of the holder while the former holder still led.
    pub(super) overlaps: usize,
    /// Changes of the holder.
    pub(super) terms: usize,
}

impl Server {
    /// A lease of a former holder that has ended.
    pub(super) fn after(holder: &str) -> Self {
        let server = Self::default();
        let spec =
            json!({"holderIdentity": holder, "leaseTransitions": 4, "leaseDurationSeconds": 15});
        server.0.lock().save(&spec);
        server
    }

    pub(super) fn writes(&self, who: &'static str, weather: Weather) {
        self.0.lock().weather.insert((who, true), weather);
    }

    pub(super) fn reads(&self, who: &'static str, weather: Weather) {
        self.0.lock().weather.insert((who, false), weather);
    }

    /// Answers no request of this candidate.
    pub(super) fn away(&self, who: &'static str) {
        self.writes(who, Weather::Held);
        self.reads(who, Weather::Held);
    }

    pub(super) fn back(&self, who: &'static str) {
        self.writes(who, Weather::Fair);
        self.reads(who, Weather::Fair);
    }

    /// Executes delayed requests in order.
    pub(super) fn land(&self) {
        let mut state = self.0.lock();
        for (method, body, asked) in std::mem::take(&mut state.held) {
            let answer = state.write(&method, &body);
            // A client that no longer waits does not receive the response.
            let _ = asked.send(answer);
        }
    }

    /// Changes the Lease as another client.
    pub(super) fn change(&self, spec: &Value) {
        self.0.lock().save(spec);
    }

    pub(super) fn spec(&self) -> Value {
        self.0
            .lock()
            .lease
            .as_ref()
            .map_or(Value::Null, |l| l["spec"].clone())
    }

    pub(super) fn holder(&self) -> String {
        self.spec()["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub(super) fn version(&self) -> u64 {
        self.0.lock().version
    }

    /// Times of this process's writes other than to the Lease.
    pub(super) fn work(&self, of: &str) -> Vec<Instant> {
        let state = self.0.lock();
        let of = state.work.iter().filter(|(_, who)| *who == of);
        of.map(|(at, _)| *at).collect()
    }

    pub(super) fn client(&self, who: &'static str) -> Client {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { server.answer(who, request).await }
        });
        Client::new(service, "ns")
    }

    async fn answer(
        &self,
        who: &'static str,
        request: Request<Body>,
    ) -> Result<Response<Body>, BoxError> {
        let (head, body) = request.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if !head.uri.path().contains("/leases") {
            self.0.lock().work.push((SystemClock.monotonic(), who));
            return answer((200, json!({"metadata": {"name": "x"}})));
        }
        let writes = head.method != Method::GET;
        let weather = self.0.lock().weather.get(&(who, writes)).copied();
        match weather.unwrap_or(Weather::Fair) {
            Weather::Fair => {
                let written = self.0.lock().write(&head.method, &body);
                return answer(written);
            }
            Weather::Refused(code) => return answer(failure(code)),
            Weather::Lost => {
                self.0.lock().write(&head.method, &body);
            }
            Weather::Held if writes => {
                let (asked, answered) = oneshot::channel();
                self.0.lock().held.push((head.method, body, asked));
                return answer(answered.await?);
            }
            Weather::Held => {}
        }
        std::future::pending().await
    }
}

impl State {
    fn save(&mut self, changed: &Value) -> Value {
        self.version += 1;
        let mut spec = self.lease.as_ref().map_or(json!({}), |l| l["spec"].clone());
        let former = spec["holderIdentity"].clone();
        for (field, value) in changed.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        if spec["holderIdentity"] != former {
            self.terms += 1;
            let now = SystemClock.monotonic();
            let of_others = self
                .tenures
                .iter()
                .filter(|(who, _)| spec["holderIdentity"] != *who);
            self.overlaps += of_others
                .filter(|(_, tenure)| tenure.check(now).is_ok())
                .count();
        }
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
            "metadata": {"name": "l", "namespace": "ns", "resourceVersion": self.version.to_string()}});
        self.lease = Some(lease.clone());
        lease
    }

    fn write(&mut self, method: &Method, body: &Value) -> Answer {
        match (method, &self.lease) {
            (&Method::POST, None) => (201, self.save(&body["spec"])),
            (&Method::GET, Some(lease)) => (200, lease.clone()),
            (&Method::POST, Some(_)) => failure(409),
            (_, None) => failure(404),
            (_, Some(lease)) => {
                let version = &lease["metadata"]["resourceVersion"];
                let wanted = &body["metadata"]["resourceVersion"];
                if !wanted.is_null() && version != wanted {
                    return failure(409);
                }
                (200, self.save(&body["spec"]))
            }
        }
    }
}

fn failure(code: u16) -> Answer {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": "as the test says"});
    (code, status)
}

fn answer((code, value): Answer) -> Result<Response<Body>, BoxError> {
    let body = Body::from(serde_json::to_vec(&value)?);
    Ok(Response::builder().status(code).body(body)?)
}

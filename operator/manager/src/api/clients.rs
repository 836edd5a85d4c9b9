//! The connections to the API server.
//!
//! Three clients over two connections (ADR 0016). `read` repeats what fails with 429, 503 or 504 a
//! few times. `write` repeats nothing (a repeated POST is a second write) and sends nothing once
//! this process no longer leads. `lease` is `write` without that fence. All of them count their
//! requests and end each in time, the body included; a watch must be answered in time and is then
//! left open, since kube ends it by itself when nothing arrives.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder, service_fn};

use super::deadline::in_time;
use super::metrics::RequestMetrics;
use crate::clock::Clock;
use crate::lease::Tenure;

/// Unguarded clients, as a process or a simulation provides them.
#[derive(Clone)]
pub struct Transports {
    /// Repeats what the server refuses for a moment.
    pub read: Client,
    /// Sends everything once.
    pub write: Client,
}

impl Transports {
    /// Connects with a kubeconfig or as a pod.
    pub fn connect(mut config: Config) -> kube::Result<Self> {
        // Stock retries repeat every verb for up to 15 times and minutes.
        config.default_retry = false;
        let write = ClientBuilder::try_from(config.clone())?.build();
        let namespace = config.default_namespace.clone();
        let service = write.clone();
        let send = service_fn(move |request: Request<Body>| {
            let service = service.clone();
            async move { service.send(request).await.map_err(BoxError::from) }
        });
        let retrying = ServiceBuilder::new()
            .retry(RetryPolicy::default())
            .service(send);
        Ok(Self {
            read: Client::new(retrying, namespace),
            write,
        })
    }
}

/// Longest time that a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// For reads.
    pub read: Duration,
    /// For writes.
    pub write: Duration,
}

/// The guarded clients of a process.
#[derive(Clone)]
pub struct Clients {
    /// Lists, watches, gets.
    pub read: Client,
    /// Everything that changes something; sends only while leading.
    pub write: Client,
    /// The lease.
    pub lease: Client,
}

impl Clients {
    /// Puts deadlines, the fence and the counters around the transports.
    pub fn new(
        transports: &Transports,
        deadlines: Deadlines,
        tenure: Tenure,
        clock: &Arc<dyn Clock>,
        requests: &RequestMetrics,
    ) -> Self {
        let guard = |deadline, fence| {
            Arc::new(Guard {
                deadline,
                fence,
                clock: clock.clone(),
                requests: requests.clone(),
            })
        };
        Self {
            read: guarded(&transports.read, guard(deadlines.read, None)),
            write: guarded(&transports.write, guard(deadlines.write, Some(tenure))),
            lease: guarded(&transports.write, guard(deadlines.write, None)),
        }
    }
}

struct Guard {
    deadline: Duration,
    fence: Option<Tenure>,
    clock: Arc<dyn Clock>,
    requests: RequestMetrics,
}

fn guarded(inner: &Client, guard: Arc<Guard>) -> Client {
    let namespace = inner.default_namespace().to_owned();
    let inner = inner.clone();
    Client::new(
        service_fn(move |request| {
            let (inner, guard) = (inner.clone(), guard.clone());
            async move { guard.send(&inner, request).await }
        }),
        namespace,
    )
}

impl Guard {
    async fn send(
        &self,
        inner: &Client,
        request: Request<Body>,
    ) -> Result<Response<Body>, BoxError> {
        let method = request.method().clone();
        if let (Some(tenure), true) = (&self.fence, method != Method::GET) {
            tenure.check(self.clock.monotonic())?;
        }
        let watch = request
            .uri()
            .query()
            .is_some_and(|q| q.split('&').any(|p| p == "watch=true"));
        let answer = in_time(self.deadline, async {
            let (head, body) = inner.send(request).await?.into_parts();
            if watch {
                return Ok(Response::from_parts(head, body));
            }
            let bytes = body.collect().await?.to_bytes();
            Ok::<_, BoxError>(Response::from_parts(head, Body::from(bytes)))
        })
        .await
        .unwrap_or_else(|late| Err(late.into()));
        self.requests
            .count(&method, answer.as_ref().ok().map(Response::status));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::error::{ApiError, ErrorClass};
    use crate::clock::SystemClock;
    use crate::lease::Leadership;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::DeleteParams;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::watch;

    fn silent(calls: &Arc<AtomicUsize>) -> Client {
        let calls = calls.clone();
        Client::new(
            service_fn(move |_: Request<Body>| {
                calls.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<Result<Response<Body>, BoxError>>()
            }),
            "default",
        )
    }

    fn clients(calls: &Arc<AtomicUsize>, leadership: Option<Leadership>) -> Clients {
        let transports = Transports {
            read: silent(calls),
            write: silent(calls),
        };
        let deadlines = Deadlines {
            read: Duration::from_secs(30),
            write: Duration::from_secs(5),
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (_, rx) = watch::channel(leadership);
        Clients::new(
            &transports,
            deadlines,
            Tenure::new(rx),
            &clock,
            &RequestMetrics::default(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_never_answered_ends_at_its_deadline() {
        let calls = Arc::new(AtomicUsize::new(0));
        let api: Api<ConfigMap> = Api::default_namespaced(clients(&calls, None).read);
        let error = api.get("x").await.unwrap_err();
        assert_eq!(ApiError::from(error).class, ErrorClass::Timeout);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn no_write_is_sent_after_leadership_has_ended() {
        let calls = Arc::new(AtomicUsize::new(0));
        let ended = Leadership {
            term: 1,
            valid_until: SystemClock.monotonic(),
        };
        for leadership in [None, Some(ended)] {
            let api: Api<ConfigMap> = Api::default_namespaced(clients(&calls, leadership).write);
            let error = api.delete("x", &DeleteParams::default()).await.unwrap_err();
            assert_eq!(ApiError::from(error).class, ErrorClass::NotLeading);
        }
        assert_eq!(calls.load(Ordering::SeqCst), 0);
    }
}

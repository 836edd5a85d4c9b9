//! Three clients with separate connections to the API server (ADR 0016):
//!
//! - `read` retries responses 429, 503 and 504.
//! - `write` never retries, because a repeated POST is a second write. It sends only while this
//!   process leads, and reports results to the pace.
//! - `lease` never retries, and sends even if the process does not lead. Writes cannot delay it.
//!
//! All clients count requests and apply a deadline that includes the body. For a watch, the
//! deadline covers only the response headers, because kube ends a silent watch.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::client::retry::RetryPolicy;
use kube::{Client, Config};
use lockstep_common::api_server::{ComeBack, is_overload};
use lockstep_common::connection;
use tower::{BoxError, ServiceBuilder, service_fn};

use super::metrics::RequestMetrics;
use super::pace::{Outcome, Pace};
use crate::clock::Clock;
use crate::deadline::{DeadlineExceeded, in_time, sleep_until};
use crate::lease::Tenure;

/// Clients without deadline and fence, provided by a process or a simulation.
#[derive(Clone)]
pub struct Transports {
    pub read: Client,
    pub write: Client,
    /// Carries only requests for the lease.
    pub lease: Client,
}

impl Transports {
    /// Connects from a kubeconfig or with the pod's service account.
    pub fn connect(config: Config) -> kube::Result<Self> {
        let namespace = config.default_namespace.clone();
        let write = connection::connect(config.clone())?;
        let lease = connection::connect(config.clone())?;
        let reading = connection::connect(config)?;
        let send = service_fn(move |request: Request<Body>| {
            let service = reading.clone();
            async move { service.send(request).await.map_err(BoxError::from) }
        });
        let retrying = ServiceBuilder::new()
            .retry(RetryPolicy::default())
            .service(send);
        Ok(Self {
            read: Client::new(retrying, namespace),
            write,
            lease,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    pub read: Duration,
    pub write: Duration,
}

#[derive(Clone)]
pub struct Clients {
    pub read: Client,
    pub write: Client,
    pub lease: Client,
    /// Adaptive limit of requests in flight.
    pub pace: Pace,
}

impl Clients {
    pub fn new(
        transports: &Transports,
        deadlines: Deadlines,
        tenure: Tenure,
        clock: &Arc<dyn Clock>,
        pace: Pace,
        requests: &RequestMetrics,
    ) -> Self {
        let guard = |deadline, fence, pace| {
            Arc::new(Guard {
                deadline,
                fence,
                pace,
                clock: clock.clone(),
                requests: requests.clone(),
            })
        };
        Self {
            read: guarded(&transports.read, guard(deadlines.read, None, None)),
            write: guarded(
                &transports.write,
                guard(deadlines.write, Some(tenure), Some(pace.clone())),
            ),
            lease: guarded(&transports.lease, guard(deadlines.write, None, None)),
            pace,
        }
    }
}

struct Guard {
    deadline: Duration,
    fence: Option<Tenure>,
    pace: Option<Pace>,
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
        let sent = self.clock.monotonic();
        // A write must end before another process can lead, even if this process pauses.
        let ends = match &self.fence {
            Some(tenure) if method != Method::GET => Some(tenure.check(sent)?.valid_until),
            _ => None,
        };
        let watch = request
            .uri()
            .query()
            .is_some_and(|q| q.split('&').any(|p| p == "watch=true"));
        let evicts = request.uri().path().ends_with("/eviction");
        let sending = in_time(self.deadline, async {
            let (head, body) = inner.send(request).await?.into_parts();
            if watch {
                return Ok(Response::from_parts(head, body));
            }
            let bytes = body.collect().await?.to_bytes();
            Ok::<_, BoxError>(Response::from_parts(head, Body::from(bytes)))
        });
        let response = tokio::select! {
            // Checked first: a resumed process must not send a prepared request.
            biased;
            () = sleep_until(ends) => Err(DeadlineExceeded(ends.map_or(self.deadline, |ends| ends - sent))),
            response = sending => response,
        };
        let response = response.unwrap_or_else(|late| Err(late.into()));
        let took = self.clock.monotonic() - sent;
        if !watch {
            self.requests.took(&method, took);
        }
        let status = response.as_ref().ok().map(Response::status);
        self.requests.count(&method, status);
        if let (Some(pace), false) = (&self.pace, method == Method::GET) {
            // A refusal by a disruption budget has the status code of overload.
            let outcome = match status.filter(|s| evicts || !is_overload(*s)) {
                Some(_) => Outcome::After(took),
                None => Outcome::Overloaded,
            };
            pace.note(outcome);
        }
        // kube drops response headers, so Retry-After is read here.
        let response = response?;
        match ComeBack::read(&response) {
            Some(come_back) => Err(come_back.into()),
            None => Ok(response),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::error::{ApiError, ErrorClass};
    use crate::clock::SystemClock;
    use crate::lease::Leadership;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use kube::Api;
    use kube::api::{DeleteParams, EvictParams};
    use parking_lot::Mutex;
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;
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
            lease: silent(calls),
        };
        clients_over(&transports, leadership)
    }

    fn clients_over(transports: &Transports, leadership: Option<Leadership>) -> Clients {
        let deadlines = Deadlines {
            read: Duration::from_secs(30),
            write: Duration::from_secs(5),
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (_, rx) = watch::channel(leadership);
        Clients::new(
            transports,
            deadlines,
            Tenure::new(rx),
            &clock,
            Pace::new(32),
            &RequestMetrics::default(),
        )
    }

    fn leading() -> Leadership {
        Leadership {
            term: 1,
            valid_until: SystemClock.monotonic() + Duration::from_hours(1),
        }
    }

    /// Clients of a server that always sends this response.
    fn answering(code: u16, headers: &[(&str, &str)], body: &'static str) -> Clients {
        let headers: Vec<(String, String)> = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let client = Client::new(
            service_fn(move |_: Request<Body>| {
                let mut response = Response::builder().status(code);
                for (name, value) in &headers {
                    response = response.header(name, value);
                }
                let response = response.body(Body::from(body.as_bytes().to_vec()));
                async move { response.map_err(BoxError::from) }
            }),
            "default",
        );
        let transports = Transports {
            read: client.clone(),
            write: client.clone(),
            lease: client,
        };
        clients_over(&transports, Some(leading()))
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

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_not_answered_ends_with_the_leadership_in_which_it_was_sent() {
        let calls = Arc::new(AtomicUsize::new(0));
        let sent = SystemClock.monotonic();
        let left = Duration::from_secs(2);
        let leadership = Leadership {
            term: 1,
            valid_until: sent + left,
        };
        let api: Api<ConfigMap> = Api::default_namespaced(clients(&calls, Some(leadership)).write);
        let error = api.delete("x", &DeleteParams::default()).await.unwrap_err();
        assert_eq!(ApiError::from(error).class, ErrorClass::Timeout);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let took = SystemClock.monotonic() - sent;
        assert!(
            took >= left && took < left + Duration::from_secs(1),
            "{took:?}"
        );
    }

    /// As with SIGSTOP: other tasks run between the check of leadership and the first byte sent.
    #[tokio::test(start_paused = true)]
    async fn a_write_that_had_not_left_when_the_process_stood_still_does_not_leave_afterwards() {
        let (mut left, mut stayed) = (0, 0);
        // However far the write has progressed by then.
        for steps in 0..12 {
            let sent = Arc::new(Mutex::new(None));
            let noted = sent.clone();
            let server = Client::new(
                service_fn(move |_: Request<Body>| {
                    let noted = noted.clone();
                    async move {
                        *noted.lock() = Some(SystemClock.monotonic());
                        std::future::pending::<Result<Response<Body>, BoxError>>().await
                    }
                }),
                "default",
            );
            let transports = Transports {
                read: server.clone(),
                write: server.clone(),
                lease: server,
            };
            let valid_until = SystemClock.monotonic() + Duration::from_secs(9);
            let leadership = Leadership {
                term: 1,
                valid_until,
            };
            let clients = clients_over(&transports, Some(leadership));
            let api: Api<ConfigMap> = Api::default_namespaced(clients.write);
            let params = DeleteParams::default();
            let mut write = Box::pin(api.delete("x", &params));
            for _ in 0..steps {
                poll_fn(|context| {
                    assert!(write.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                tokio::task::yield_now().await;
            }
            tokio::time::advance(Duration::from_secs(30)).await;
            write.await.unwrap_err();
            match *sent.lock() {
                None => stayed += 1,
                Some(at) => {
                    assert!(at < valid_until, "sent too late, after {steps} steps");
                    left += 1;
                }
            }
        }
        assert!(left > 0 && stayed > 1, "{left} {stayed}");
    }

    #[tokio::test]
    async fn overload_is_reported_with_retry_after_and_reduces_concurrency() {
        let headers = [("retry-after", "7"), ("content-type", "text/plain")];
        let clients = answering(429, &headers, "Too many requests, please try again later.");
        let api: Api<ConfigMap> = Api::default_namespaced(clients.write.clone());
        let error = api.delete("x", &DeleteParams::default()).await.unwrap_err();
        let error = ApiError::from(error);
        assert_eq!(error.class, ErrorClass::Throttled);
        assert_eq!(error.retry_after, Duration::from_secs(7));
        assert_eq!(clients.pace.allows(32), 31);
    }

    #[tokio::test]
    async fn a_gateway_error_does_not_mean_that_the_request_had_no_effect() {
        let headers = [("retry-after", "7"), ("content-type", "text/plain")];
        for (code, class) in [(504, ErrorClass::Timeout), (503, ErrorClass::Other)] {
            let clients = answering(code, &headers, "upstream request timeout");
            let api: Api<ConfigMap> = Api::default_namespaced(clients.write.clone());
            let error = api.delete("x", &DeleteParams::default()).await.unwrap_err();
            let error = ApiError::from(error);
            assert_eq!(error.class, class);
            assert_eq!(error.retry_after, Duration::from_secs(7));
        }
    }

    #[tokio::test]
    async fn a_disruption_budget_is_no_overload() {
        let body = r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429,
            "reason": "TooManyRequests", "message": "budget",
            "details": {"retryAfterSeconds": 10, "causes": [{"reason": "DisruptionBudget"}]}}"#;
        let headers = [("retry-after", "10"), ("content-type", "application/json")];
        let clients = answering(429, &headers, body);
        let pods: Api<Pod> = Api::default_namespaced(clients.write.clone());
        let error = pods.evict("x", &EvictParams::default()).await.unwrap_err();
        let error = ApiError::from(error);
        assert_eq!(
            (error.class, error.message.as_str(), error.retry_after),
            (ErrorClass::Budget, "budget", Duration::from_secs(10))
        );
        assert_eq!(clients.pace.allows(32), 32);
    }
}

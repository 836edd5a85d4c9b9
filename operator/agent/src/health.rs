//! What the agent waits for, and the endpoints that say so.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tracing::warn;

/// Something without which an agent does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The policy that binds it to its node is in force.
    Policy,
    /// Its NodeAgent exists.
    Object,
    /// The restart orders are listed.
    Orders,
    /// The container runtime answers.
    Runtime,
    /// What it must not forget can be written.
    Records,
}

impl Part {
    const ALL: [Self; 5] = [
        Self::Policy,
        Self::Object,
        Self::Orders,
        Self::Runtime,
        Self::Records,
    ];
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Policy => "self-test of the admission policy",
            Self::Object => "NodeAgent of this node",
            Self::Orders => "list of restart orders",
            Self::Runtime => "container runtime",
            Self::Records => "records of this node",
        })
    }
}

/// Whether the agent is ready: its manager counts on it only then. Clones share it; everything is
/// waited for at first.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<Mutex<BTreeMap<Part, String>>>);

impl Default for Readiness {
    fn default() -> Self {
        let pending = Part::ALL
            .into_iter()
            .map(|part| (part, "not yet".to_owned()));
        Self(Arc::new(Mutex::new(pending.collect())))
    }
}

impl Readiness {
    /// The part is there.
    pub fn done(&self, part: Part) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&part);
    }

    /// The part is missing, and why.
    pub fn waits_for(&self, part: Part, why: &impl fmt::Display) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(part, why.to_string());
    }

    /// What is waited for, a line each; None when ready.
    pub fn pending(&self) -> Option<String> {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<String> = parts
            .iter()
            .map(|(part, why)| format!("waiting for {part}: {why}\n"))
            .collect();
        (!lines.is_empty()).then(|| lines.concat())
    }
}

/// Serves `/healthz` (the process runs) and `/readyz` (the agent can do its work).
pub async fn serve_health(listener: TcpListener, readiness: Readiness) {
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(readiness);
    serve(listener, routes).await;
}

/// Serves `/metrics`.
pub async fn serve_metrics(listener: TcpListener, registry: Arc<Registry>) {
    serve(
        listener,
        Router::new()
            .route("/metrics", get(metrics))
            .with_state(registry),
    )
    .await;
}

async fn serve(listener: TcpListener, routes: Router) {
    if let Err(error) = axum::serve(listener, routes).await {
        warn!(%error, "http server ended");
    }
}

async fn readyz(State(readiness): State<Readiness>) -> impl IntoResponse {
    match readiness.pending() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(pending) => (StatusCode::SERVICE_UNAVAILABLE, pending),
    }
}

async fn metrics(State(registry): State<Arc<Registry>>) -> impl IntoResponse {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    (
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_ready_when_every_part_is_there_and_says_what_is_missing() {
        let readiness = Readiness::default();
        for part in Part::ALL {
            assert!(readiness.pending().unwrap().contains(&part.to_string()));
            readiness.done(part);
        }
        assert_eq!(readiness.pending(), None);
        readiness.waits_for(Part::Runtime, &"no answer");
        assert_eq!(
            readiness.pending().unwrap(),
            "waiting for container runtime: no answer\n"
        );
    }
}

//! Health and metrics over HTTP.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tracing::warn;

use crate::index::Index;
use crate::metrics::SharedRegistry;

/// What the health endpoint asks. Clones share it.
#[derive(Clone, Default)]
pub struct Health(Arc<OnceLock<Arc<Index>>>);

impl Health {
    /// From now on readiness is that of this index.
    pub fn follow(&self, index: &Arc<Index>) {
        // A second manager in one process would be a mistake of the caller; the first one stays.
        let _ = self.0.set(index.clone());
    }

    /// Ready, or what is waited for.
    fn readiness(&self) -> Result<(), String> {
        let Some(index) = self.0.get() else {
            return Err("waiting for: start\n".into());
        };
        let pending = index.pending();
        if pending.is_empty() {
            Ok(())
        } else {
            Err(format!("waiting for: {}\n", pending.join(", ")))
        }
    }
}

/// Serves `/healthz` (the process runs) and `/readyz` (everything was listed once; a follower is
/// ready too).
pub async fn serve_health(listener: TcpListener, health: Health) {
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(health);
    serve(listener, routes).await;
}

/// Serves `/metrics`.
pub async fn serve_metrics(listener: TcpListener, registry: SharedRegistry) {
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

async fn readyz(State(health): State<Health>) -> impl IntoResponse {
    match health.readiness() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(pending) => (StatusCode::SERVICE_UNAVAILABLE, pending),
    }
}

async fn metrics(State(registry): State<SharedRegistry>) -> impl IntoResponse {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry.lock());
    (
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    )
}

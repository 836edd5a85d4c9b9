//! Health and metrics over HTTP.

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tracing::warn;

use crate::index::Index;
use crate::metrics::SharedRegistry;

/// What the health endpoint asks. Clones share it.
#[derive(Clone, Default)]
pub struct Health(Arc<Parts>);

#[derive(Default)]
struct Parts {
    index: OnceLock<Arc<Index>>,
    policies: Mutex<Policies>,
}

/// What the check of the admission policies has found.
#[derive(Default)]
enum Policies {
    /// Readiness does not ask: nobody tests them here.
    #[default]
    Unasked,
    /// They are being tested for the first time.
    Pending,
    /// They let this process write.
    Allow,
    /// They do not, for this reason.
    Refuse(String),
}

impl Health {
    /// From now on readiness is that of this index.
    pub fn follow(&self, index: &Arc<Index>) {
        // A second manager in one process would be a mistake of the caller; the first one stays.
        let _ = self.0.index.set(index.clone());
    }

    /// From now on readiness waits for the test of the admission policies.
    pub fn await_policies(&self) {
        self.set_policies(Policies::Pending);
    }

    /// What the test has found: why this process may not write, if so.
    pub fn policies(&self, refusal: Option<String>) {
        self.set_policies(refusal.map_or(Policies::Allow, Policies::Refuse));
    }

    fn set_policies(&self, policies: Policies) {
        *self.0.policies.lock() = policies;
    }

    /// Ready, or what is waited for.
    fn readiness(&self) -> Result<(), String> {
        let Some(index) = self.0.index.get() else {
            return Err("waiting for: start\n".into());
        };
        let pending = index.pending();
        if !pending.is_empty() {
            return Err(format!("waiting for: {}\n", pending.join(", ")));
        }
        match &*self.0.policies.lock() {
            Policies::Unasked | Policies::Allow => Ok(()),
            Policies::Pending => Err("waiting for: test of the admission policies\n".into()),
            Policies::Refuse(why) => Err(format!("{why}\n")),
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

/// Serves `/metrics`, and series of single workloads at `/metrics/workloads`.
pub async fn serve_metrics(
    listener: TcpListener,
    registry: SharedRegistry,
    workloads: SharedRegistry,
) {
    let routes = Router::new()
        .route("/metrics", get(metrics).with_state(registry))
        .route("/metrics/workloads", get(metrics).with_state(workloads));
    serve(listener, routes).await;
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

async fn metrics(State(registry): State<SharedRegistry>, headers: HeaderMap) -> impl IntoResponse {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry.lock());
    let accepted = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok());
    let (content_type, text) = if accepted.is_some_and(|a| a.contains("openmetrics-text")) {
        (
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            text,
        )
    } else {
        ("text/plain; version=0.0.4; charset=utf-8", plain(&text))
    };
    ([(header::CONTENT_TYPE, content_type)], text)
}

/// OpenMetrics in the older text format, in which counters are called what their series are called,
/// and infos are gauges.
fn plain(open_metrics: &str) -> String {
    // Writing to a string cannot fail.
    let mut out = String::with_capacity(open_metrics.len());
    let mut suffix = "";
    let lines: Vec<&str> = open_metrics.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let mut words = line.splitn(4, ' ');
        let (mark, what) = (words.next(), words.next());
        match (mark, what, words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), Some(help)) => {
                suffix = suffix_of(lines.get(at + 1).copied().unwrap_or_default());
                let _ = writeln!(out, "# HELP {name}{suffix} {help}");
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let kind = if kind == "info" { "gauge" } else { kind };
                let _ = writeln!(out, "# TYPE {name}{suffix} {kind}");
            }
            (Some("#"), _, _, _) => {}
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

/// What the series of a metric have behind its name, from the line that says of what type it is.
fn suffix_of(type_line: &str) -> &'static str {
    match type_line.rsplit(' ').next() {
        Some("counter") => "_total",
        Some("info") => "_info",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_collectors_find_counters_under_the_name_of_their_series() {
        let open = "# HELP a_b Things done.\n# TYPE a_b counter\na_b_total{x=\"# TYPE\"} 3\n\
            # HELP v Version.\n# TYPE v info\nv_info{version=\"1\"} 1\n\
            # HELP g Now.\n# TYPE g gauge\ng 2\n# EOF\n";
        let expected = "# HELP a_b_total Things done.\n# TYPE a_b_total counter\na_b_total{x=\"# TYPE\"} 3\n\
            # HELP v_info Version.\n# TYPE v_info gauge\nv_info{version=\"1\"} 1\n\
            # HELP g Now.\n# TYPE g gauge\ng 2\n";
        assert_eq!(plain(open), expected);
    }
}

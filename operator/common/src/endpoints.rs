//! Health and metrics over HTTP.

mod connections;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tracing::{info, warn};

use self::connections::LimitedListener;

/// Metrics registry of a process. Components may register while the endpoint serves it.
pub type SharedRegistry = Arc<Mutex<Registry>>;

pub async fn listen(endpoint: &str, address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("{endpoint} endpoint at {address}"))?;
    info!(endpoint, address = %listener.local_addr()?, "listening");
    Ok(listener)
}

/// Serves `/healthz` (the process runs) and `/readyz`. `ready` returns the body of the response, or
/// why the process is not ready.
pub async fn serve_health<R>(listener: TcpListener, ready: R)
where
    R: Fn() -> Result<String, String> + Clone + Send + Sync + 'static,
{
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { readiness(ready()) }));
    serve(listener, routes).await;
}

fn readiness(report: Result<String, String>) -> (StatusCode, String) {
    match report {
        Ok(report) => (StatusCode::OK, report),
        Err(pending) => (StatusCode::SERVICE_UNAVAILABLE, pending),
    }
}

pub async fn serve_metrics(
    listener: TcpListener,
    registries: impl IntoIterator<Item = (&'static str, SharedRegistry)>,
) {
    let mut routes = Router::new();
    for (path, registry) in registries {
        routes = routes.route(path, get(metrics).with_state(registry));
    }
    serve(listener, routes).await;
}

async fn serve(listener: TcpListener, routes: Router) {
    let listener = LimitedListener::new(listener);
    if let Err(error) = axum::serve(listener, routes).await {
        warn!(%error, "http server ended");
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

/// Converts OpenMetrics to the older text format: counter names include the suffix of their series,
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

/// Suffix of the series of a metric, from its TYPE line.
fn suffix_of(type_line: &str) -> &'static str {
    match type_line.rsplit(' ').next() {
        Some("counter") => "_total",
        Some("info") => "_info",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use axum::http::HeaderValue;
    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::JoinSet;

    use super::*;

    /// Content type and text for a scraper that accepts this.
    async fn scraped(registry: &SharedRegistry, accept: Option<&'static str>) -> (String, String) {
        let accept = accept.map(|a| (header::ACCEPT, HeaderValue::from_static(a)));
        let headers = accept.into_iter().collect();
        let answer = metrics(State(registry.clone()), headers).await;
        let (parts, body) = answer.into_response().into_parts();
        let content_type = parts.headers[header::CONTENT_TYPE].to_str().unwrap();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8(body.into()).unwrap();
        (content_type.to_owned(), text)
    }

    #[tokio::test]
    async fn openmetrics_is_sent_only_to_clients_that_accept_it() {
        let registry = SharedRegistry::default();
        let done: Counter = Counter::default();
        registry.lock().register("a_b", "Things done", done);
        let open = "# HELP a_b Things done.\n# TYPE a_b counter\na_b_total 0\n# EOF\n";
        let older = "# HELP a_b_total Things done.\n# TYPE a_b_total counter\na_b_total 0\n";
        let open = (
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            open,
        );
        let older = ("text/plain; version=0.0.4; charset=utf-8", older);
        // Accept headers of Prometheus, with and without OpenMetrics.
        for (accept, expected) in [
            (
                Some(
                    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
                ),
                open,
            ),
            (Some("text/plain;version=0.0.4;q=0.5,*/*;q=0.1"), older),
            (Some("*/*"), older),
            (None, older),
        ] {
            let (content_type, text) = scraped(&registry, accept).await;
            assert_eq!((&*content_type, &*text), expected, "{accept:?}");
        }
    }

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

    #[tokio::test]
    async fn idle_connections_beyond_the_limit_are_closed_and_keep_out_no_probe() {
        let listener = listen("health", ([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_health(listener, || Ok("ready".to_owned())));
        let mut idle = Vec::new();
        for _ in 0..=connections::MOST {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        probe.write_all(request).await.unwrap();
        let mut answer = String::new();
        probe.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        let mut byte = [0; 1];
        assert_eq!(
            idle[0].read(&mut byte).await.unwrap(),
            0,
            "the oldest is closed"
        );
        let youngest = idle.last_mut().unwrap();
        youngest.write_all(request).await.unwrap();
        assert_eq!(
            youngest.read(&mut byte).await.unwrap(),
            1,
            "it is still served"
        );
    }
}

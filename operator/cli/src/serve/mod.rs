//! The dashboard: pages and their data over HTTP, for the user of this machine only.
//!
//! | module | content |
//! |---|---|
//! | [`state`] | what all requests share, and the query of a request |
//! | [`security`] | which requests are permitted, and the headers of each response |
//! | [`assets`] | the files of the page |
//! | [`stream`] | documents of a page and their changes, as server-sent events |
//! | [`responses`] | verbs, what-if, manifests |

pub mod assets;
pub mod responses;
pub mod security;
pub mod state;
pub mod stream;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::json;
use tokio::net::TcpListener;

use self::security::{Access, json_response, refused};
use self::state::{Dashboard, Kept, Query};
use crate::cluster::LiveView;

/// Longest body of a request: a manifest.
const BODY: usize = 1 << 20;

/// Listens on a port of this machine; 0: any free port. Returns the address of the page with its
/// token, and the server.
pub async fn listen(
    live: Arc<LiveView>,
    port: u16,
) -> Result<(String, impl Future<Output = std::io::Result<()>>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| format!("cannot listen on port {port}"))?;
    let port = listener.local_addr()?.port();
    let access = Access::new(port).context("no random numbers")?;
    let address = format!("http://127.0.0.1:{port}/#t={}", access.token());
    let dashboard = Arc::new(Dashboard {
        live,
        access,
        streams: AtomicUsize::new(0),
        queue: Kept::default(),
        doctor: Kept::default(),
        member_pods: Kept::default(),
    });
    let routes = Router::new().fallback(respond).with_state(dashboard);
    Ok((address, async { axum::serve(listener, routes).await }))
}

async fn respond(State(dashboard): State<Arc<Dashboard>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    if let Some(refusal) = dashboard.access.refusal(&request) {
        return refusal;
    }
    if !path.starts_with("/api/") {
        return assets::file(&path, &request);
    }
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let (parts, body) = request.into_parts();
    match (&parts.method, path.as_str()) {
        (&Method::GET, "/api/stream") => stream::open(dashboard, &query),
        (&Method::GET, "/api/manifest") => responses::manifest(&dashboard, &query).await,
        (&Method::GET, _) => match path.strip_prefix("/api/verbs/") {
            Some(verb) => responses::verb(&dashboard, verb, &query).await,
            None => refused(StatusCode::NOT_FOUND, "no such page"),
        },
        (&Method::POST, "/api/pods") => {
            dashboard.live.load_pods().await;
            json_response(StatusCode::OK, &json!({}))
        }
        (&Method::POST, "/api/whatif") => match axum::body::to_bytes(body, BODY).await {
            Ok(body) => responses::whatif(&dashboard, &body).await,
            Err(_) => refused(StatusCode::PAYLOAD_TOO_LARGE, "larger than 1 MiB"),
        },
        _ => refused(StatusCode::NOT_FOUND, "no such page"),
    }
}

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::security::{refused, response};

/// The files of the page, which are part of the program.
macro_rules! files {
    ($($name:literal)*) => {
        [$(($name, include_bytes!(concat!("../../page/", $name)).as_slice())),*]
    };
}

/// Name and content of each file in `operator/cli/page`.
pub const FILES: &[(&str, &[u8])] = &files![
    "app.js"
    "canvas.js"
    "format.js"
    "health.js"
    "incidents.js"
    "index.html"
    "layout.js"
    "map.js"
    "members.js"
    "overview.js"
    "queue.js"
    "state.js"
    "store.js"
    "style.css"
    "ui.js"
    "vdom.js"
    "whatif.js"
    "workload.js"
];

/// A file of the page. Files have no data of the cluster.
pub fn file(path: &str, request: &Request) -> Response {
    let name = match path {
        "/" => "index.html",
        other => other.strip_prefix("/assets/").unwrap_or_default(),
    };
    let Some((_, bytes)) = FILES.iter().find(|(file, _)| *file == name) else {
        return refused(StatusCode::NOT_FOUND, "no such page");
    };
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let tag = format!("\"{:x}\"", hasher.finish());
    let known = request.headers().get(header::IF_NONE_MATCH);
    let unchanged = known.is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let kind = match name.rsplit_once('.') {
        Some((_, "html")) => "text/html; charset=utf-8",
        Some((_, "css")) => "text/css; charset=utf-8",
        _ => "text/javascript; charset=utf-8",
    };
    let mut response = if unchanged {
        response(StatusCode::NOT_MODIFIED, kind, Body::empty())
    } else {
        response(StatusCode::OK, kind, Body::from(*bytes))
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};

const JSON: &str = "application/json";
/// Headers of every response. The page loads nothing from elsewhere, and runs no script in its text.
const HEADERS: [(HeaderName, &str); 3] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
];

/// Who may ask. Other users of the machine can connect too, and other pages of a browser.
#[derive(Debug)]
pub struct Access {
    token: String,
    /// `HOST:PORT` under which the page is served. Others are names that an attacker has pointed
    /// at this machine.
    hosts: [String; 3],
}

impl Access {
    /// With a random token. `None` without random numbers.
    pub fn new(port: u16) -> Option<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).ok()?;
        Some(Self {
            token: format!("{:032x}", u128::from_ne_bytes(random)),
            hosts: ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("{host}:{port}")),
        })
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// The refusal of a request that is not from the page.
    pub fn refusal(&self, request: &Request) -> Option<Response> {
        let text = |name: HeaderName| request.headers().get(name)?.to_str().ok();
        let known = |host: &str| self.hosts.iter().any(|h| h == host);
        if !text(header::HOST).is_some_and(known) {
            return Some(refused(StatusCode::FORBIDDEN, "unknown host"));
        }
        let origin = request.headers().contains_key(header::ORIGIN);
        let own = text(header::ORIGIN).and_then(|origin| origin.strip_prefix("http://"));
        if origin && !own.is_some_and(known) {
            return Some(refused(StatusCode::FORBIDDEN, "foreign origin"));
        }
        if !request.uri().path().starts_with("/api/") {
            return None;
        }
        let bearer = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        if !bearer.is_some_and(|token| same(token, &self.token)) {
            let why = "no token: open the address that the program has printed";
            return Some(refused(StatusCode::UNAUTHORIZED, why));
        }
        let kind = text(header::CONTENT_TYPE).and_then(|kind| kind.split(';').next());
        if request.method() == Method::POST && kind.map(str::trim) != Some(JSON) {
            let why = "only application/json is read";
            return Some(refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
        }
        None
    }
}

/// Compares in a time that does not depend on the first difference.
fn same(a: &str, b: &str) -> bool {
    let differ = a
        .bytes()
        .zip(b.bytes())
        .fold(0, |all, (a, b)| all | (a ^ b));
    a.len() == b.len() && differ == 0
}

/// A response with the headers of every response.
pub fn response(status: StatusCode, kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A response with data, which no browser keeps.
pub fn data(status: StatusCode, kind: &'static str, body: Body) -> Response {
    let mut response = response(status, kind, body);
    let no_store = HeaderValue::from_static("no-store");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, no_store);
    response
}

pub fn json_response(status: StatusCode, value: &Value) -> Response {
    data(status, JSON, Body::from(value.to_string()))
}

pub fn refused(status: StatusCode, why: &str) -> Response {
    json_response(status, &json!({ "error": why }))
}

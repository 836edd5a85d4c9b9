//! Access to the API server, and its Retry-After responses.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use thiserror::Error;

/// Connection settings from this kubeconfig. Default: the kubeconfig of the environment, else the
/// pod's service account.
pub async fn kube_config(kubeconfig: Option<&Path>) -> Result<Config> {
    Ok(match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path)?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?
        }
        None => Config::infer().await?,
    })
}

/// The server or a proxy was overloaded and requests a retry after `wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("status {status}; the server requests a retry in {}s", .wait.as_secs())]
pub struct ComeBack {
    /// HTTP status. Only 429 guarantees that the request was not executed.
    pub status: u16,
    pub wait: Duration,
}

impl ComeBack {
    /// Reads the Retry-After header, which kube drops. API Priority and Fairness and proxies send
    /// only this header. Responses with a `Status` repeat the wait in its details.
    pub fn read<B>(response: &Response<B>) -> Option<Self> {
        let json = |kind: &HeaderValue| kind.as_bytes().starts_with(b"application/json");
        let headers = response.headers();
        if !is_overload(response.status()) || headers.get(CONTENT_TYPE).is_some_and(json) {
            return None;
        }
        let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?;
        Some(Self {
            status: response.status().as_u16(),
            wait: Duration::from_secs(seconds.trim().parse().ok()?),
        })
    }

    pub fn of(error: &kube::Error) -> Option<Self> {
        match error {
            kube::Error::Service(error) => error.downcast_ref().copied(),
            _ => None,
        }
    }
}

pub fn is_overload(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

/// Wait that the server requests before a retry; zero by default.
pub fn retry_after(error: &kube::Error) -> Duration {
    if let kube::Error::Api(status) = error {
        let seconds = status.details.as_ref().map_or(0, |d| d.retry_after_seconds);
        return Duration::from_secs(seconds.into());
    }
    ComeBack::of(error).map_or(Duration::ZERO, |come_back| come_back.wait)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::error::Status;

    #[test]
    fn only_a_server_that_is_busy_says_when_to_come_back() {
        for (code, header, wait) in [
            (429, Some("3"), Some(3)),
            (503, Some("1"), Some(1)),
            (504, Some(" 2 "), Some(2)),
            (429, None, None),
            (429, Some("Fri, 31 Dec 1999 23:59:59 GMT"), None),
            (301, Some("3"), None),
        ] {
            let mut response = Response::builder().status(code);
            if let Some(header) = header {
                response = response.header(RETRY_AFTER, header);
            }
            let asked = ComeBack::read(&response.body(()).unwrap());
            let wanted = wait.map(|seconds| ComeBack {
                status: code,
                wait: Duration::from_secs(seconds),
            });
            assert_eq!(asked, wanted);
        }
    }

    #[test]
    fn a_status_keeps_its_words_and_has_the_time_in_its_details() {
        let response = Response::builder()
            .status(429)
            .header(RETRY_AFTER, "3")
            .header(CONTENT_TYPE, "application/json")
            .body(());
        assert_eq!(ComeBack::read(&response.unwrap()), None);
        let details = serde_json::from_value(serde_json::json!({"retryAfterSeconds": 3}));
        let status = Status::failure("m", "TooManyRequests").with_code(429);
        let error = kube::Error::Api(status.with_details(details.unwrap()).boxed());
        assert_eq!(retry_after(&error), Duration::from_secs(3));
    }

    #[test]
    fn what_the_header_said_is_found_in_the_error_of_the_request() {
        let asked = ComeBack {
            status: 429,
            wait: Duration::from_secs(7),
        };
        let error = kube::Error::Service(asked.into());
        assert_eq!(ComeBack::of(&error), Some(asked));
        assert_eq!(retry_after(&error), Duration::from_secs(7));
        let other = kube::Error::Service("connection reset".into());
        assert_eq!(retry_after(&other), Duration::ZERO);
    }
}

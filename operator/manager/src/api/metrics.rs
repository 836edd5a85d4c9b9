use std::time::Duration;

use http::{Method, StatusCode};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::metrics::decisions;

#[derive(Clone, Debug)]
pub struct RequestMetrics {
    total: Family<RequestLabels, Counter>,
    time: Family<VerbLabel, Histogram>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    method: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VerbLabel {
    verb: String,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self {
            total: Family::default(),
            time: Family::new_with_constructor(decisions),
        }
    }
}

impl RequestMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "rest_client_requests",
            "Requests to the API server by method and status code; the code is <error> without an answer",
            metrics.total.clone(),
        );
        registry.register(
            "rest_client_request_duration_seconds",
            "Time until a request was answered, watches left out",
            metrics.time.clone(),
        );
        metrics
    }

    /// Counts one request. `status` is `None` if there was no response.
    pub fn count(&self, method: &Method, status: Option<StatusCode>) {
        let code = status.map_or_else(|| "<error>".to_owned(), |s| s.as_u16().to_string());
        let labels = RequestLabels {
            code,
            method: method.to_string(),
        };
        self.total.get_or_create(&labels).inc();
    }

    /// Records the duration of a request, with or without response. Excludes watches.
    pub fn took(&self, method: &Method, time: Duration) {
        let verb = method.to_string();
        self.time
            .get_or_create(&VerbLabel { verb })
            .observe(time.as_secs_f64());
    }
}

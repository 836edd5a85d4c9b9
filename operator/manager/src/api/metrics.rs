//! Metrics of requests.

use http::{Method, StatusCode};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Requests to the API server.
#[derive(Clone, Debug, Default)]
pub struct RequestMetrics(Family<RequestLabels, Counter>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    method: String,
}

impl RequestMetrics {
    /// Counters that are shown in the registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "rest_client_requests",
            "Requests to the API server by method and code",
            metrics.0.clone(),
        );
        metrics
    }

    /// Counts one; without a status the request got no answer.
    pub fn count(&self, method: &Method, status: Option<StatusCode>) {
        let code = status.map_or_else(|| "<error>".to_owned(), |s| s.as_u16().to_string());
        let labels = RequestLabels {
            code,
            method: method.to_string(),
        };
        self.0.get_or_create(&labels).inc();
    }
}

//! What the metrics of all components have in common.
//!
//! Each component owns its metrics and registers them. Names are those of controller-runtime and
//! client-go where they exist, so that existing dashboards work; our own start with `lockstep_`. No
//! label ever holds the name of an object. Gauges over objects are computed at scrape from the
//! index.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// The registry of a process; the server reads it while parts are still registering.
pub type SharedRegistry = Arc<Mutex<Registry>>;

/// 1 ms to about 17 min, in steps of four.
pub(crate) fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 4.0, 11))
}

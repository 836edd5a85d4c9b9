//! Shared parts of all metrics.
//!
//! Names follow controller-runtime and client-go where these define a metric. Other names start
//! with `lockstep_`. No label contains an object name, except in the optional registry of
//! [`crate::gauges::WorkloadSeries`].

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// Name of the workload controller and its queue in labels of controller-runtime metrics.
pub(crate) const CONTROLLER: &str = "trainingworkload";

/// Buckets for computations and requests: 0.5 ms to 8 s, doubling.
pub(crate) fn decisions() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 2.0, 15))
}

/// Buckets for restarts: 50 ms to 10 min.
pub(crate) fn restarts() -> Histogram {
    Histogram::new([
        0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    ])
}

/// Buckets for checkpoints on request: 5 s to 2 min. Few, because a scrape is limited to 4500 series.
pub(crate) fn saves() -> Histogram {
    Histogram::new([5.0, 30.0, 120.0])
}

/// Buckets for waits of jobs: 1 s to 7 days.
pub(crate) fn waits() -> Histogram {
    Histogram::new([
        1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 28_800.0,
        86_400.0, 172_800.0, 604_800.0,
    ])
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    /// Exported upper bounds of the buckets, in seconds.
    fn bounds(histogram: Histogram) -> String {
        let mut registry = Registry::default();
        registry.register("h", "h", histogram);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let bounds = text.lines().filter_map(|line| {
            let (_, rest) = line.split_once("le=\"")?;
            Some(rest.split_once('"')?.0)
        });
        bounds.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn buckets_stay_where_dashboards_and_alerts_compare_with_older_data() {
        assert_eq!(
            bounds(decisions()),
            "0.0005 0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 +Inf"
        );
        assert_eq!(
            bounds(restarts()),
            "0.05 0.1 0.25 0.5 1.0 2.0 5.0 10.0 20.0 30.0 60.0 120.0 300.0 600.0 +Inf"
        );
        assert_eq!(
            bounds(waits()),
            "1.0 5.0 15.0 60.0 300.0 900.0 1800.0 3600.0 7200.0 14400.0 28800.0 86400.0 172800.0 604800.0 +Inf"
        );
    }
}

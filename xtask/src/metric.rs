//! Description of a metric.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only increases; for `rate` and `increase`.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Distribution; queries use `_bucket`, `_sum` and `_count`.
    Histogram,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name as in queries; of histograms without `_bucket`.
    pub name: &'static str,
    pub kind: Kind,
    /// Labels, without `le`.
    pub labels: &'static [&'static str],
    /// Meaning of the value.
    pub meaning: &'static str,
}

impl Metric {
    /// True if a query for this name selects a series of the metric.
    pub(crate) fn has_series(&self, name: &str) -> bool {
        match self.kind {
            Kind::Histogram => ["_bucket", "_sum", "_count"]
                .iter()
                .any(|part| name.strip_suffix(part) == Some(self.name)),
            Kind::Counter | Kind::Gauge => self.name == name,
        }
    }
}

//! What is known of one metric.

/// What kind of metric it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; `rate` and `increase` are for these.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size; `_bucket`, `_sum` and `_count` are what is asked for.
    Histogram,
}

impl Kind {
    /// The word of the reference page.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name, as it is asked for; of histograms without `_bucket`.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels, without `le`.
    pub labels: &'static [&'static str],
    /// What it says.
    pub meaning: &'static str,
}

impl Metric {
    /// Whether a query that asks for this name asks for a series of it.
    pub(crate) fn has_series(&self, name: &str) -> bool {
        match self.kind {
            Kind::Histogram => ["_bucket", "_sum", "_count"]
                .iter()
                .any(|part| name.strip_suffix(part) == Some(self.name)),
            Kind::Counter | Kind::Gauge => self.name == name,
        }
    }
}

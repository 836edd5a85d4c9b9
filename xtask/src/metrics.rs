//! The metrics that manager and agent register, and their reference page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use lockstep_manager::stepped::process_scrape;
use lockstep_sim::phases::{PHASES, in_phase};
use prometheus_client::registry::Registry;
use serde_json::Value;

/// Labels that the scrape adds to every series; `cluster` if one Prometheus covers several
/// clusters.
pub const OF_THE_SCRAPE: [&str; 3] = ["cluster", "job", "instance"];
/// Labels whose values the product does not determine, with the prefix of their metrics.
const OPEN: [(&str, &str); 11] = [
    ("namespace", ""),
    ("priority_class", ""),
    ("resource", ""),
    ("version", ""),
    ("commit", ""),
    ("call", ""),
    ("code", ""),
    ("name", "lockstep_workload_"),
    ("reason", "lockstep_workload_"),
    ("reason", "lockstep_condition_"),
    ("reason", "lockstep_waiting_gangs"),
];

#[derive(Clone, Debug, Default)]
pub struct Metric {
    /// Name as in queries; of histograms without `_bucket`.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    pub help: String,
    /// Labels without `le`, each with its values in the example.
    pub labels: Vec<(String, BTreeSet<String>)>,
    /// Samples in the example.
    samples: usize,
}

impl Metric {
    /// True if a query for this name selects a series of the metric.
    fn has_series(&self, name: &str) -> bool {
        match (self.kind.as_str(), name.strip_prefix(&self.name)) {
            ("histogram", Some(part)) => ["_bucket", "_sum", "_count"].contains(&part),
            (_, part) => part == Some(""),
        }
    }

    /// Possible values of a label; `None` if the product does not determine them.
    pub fn values(&self, label: &str) -> Option<&BTreeSet<String>> {
        let open = |(open, prefix): &(&str, &str)| *open == label && self.name.starts_with(prefix);
        let (_, values) = self.labels.iter().find(|(l, _)| l == label)?;
        Some(values).filter(|values| !values.is_empty() && !OPEN.iter().any(open))
    }

    fn label(&mut self, name: &str) -> &mut BTreeSet<String> {
        let at = self.labels.iter().position(|(l, _)| l == name);
        let at = at.unwrap_or_else(|| {
            self.labels.push((name.to_owned(), BTreeSet::new()));
            self.labels.len() - 1
        });
        &mut self.labels[at].1
    }
}

/// Metrics by program.
#[derive(Debug, Default)]
pub struct Metrics {
    pub manager: BTreeMap<String, Metric>,
    pub agent: BTreeMap<String, Metric>,
}

impl Metrics {
    /// Reads the metrics of the manager from simulated clusters with a workload in each phase.
    ///
    /// # Errors
    /// A metric has no series there, so that its labels are unknown.
    pub fn read() -> Result<Self> {
        let mut all = Self::default();
        add(&mut all.manager, &process_scrape());
        for phase in PHASES {
            add(&mut all.manager, &in_phase(phase).scrape());
        }
        add(&mut all.agent, &agent_scrape()?);
        for metric in all.registered() {
            let name = &metric.name;
            ensure!(metric.samples > 0, "{name} has no series in the example");
        }
        Ok(all)
    }

    /// The metrics of manager and agent.
    pub fn registered(&self) -> impl Iterator<Item = &Metric> {
        self.manager.values().chain(self.agent.values())
    }

    /// The metric of a series, by its name in a query.
    pub fn of_series(&self, name: &str) -> Option<&Metric> {
        self.registered().find(|metric| metric.has_series(name))
    }

    /// Path from the root and content of the reference page.
    pub fn page(&self) -> (PathBuf, String) {
        let tables = [(MANAGER, &self.manager), (AGENT, &self.agent)];
        let mut out = HEAD.to_owned();
        for (head, metrics) in tables {
            out.push_str(head);
            out.push_str("| metric | type | labels | meaning |\n|---|---|---|---|\n");
            for metric in metrics.values() {
                let labels: Vec<&str> = metric.labels.iter().map(|(l, _)| l.as_str()).collect();
                let (labels, help) = (labels.join(", "), metric.help.replace('<', "&lt;"));
                // Writing to a string cannot fail.
                let _ = writeln!(
                    out,
                    "| `{}` | {} | {labels} | {help} |",
                    metric.name, metric.kind
                );
            }
        }
        (PathBuf::from("docs/reference/metrics.md"), out)
    }
}

/// A scrape of an agent.
fn agent_scrape() -> Result<String> {
    let (metrics, mut registry) = (
        lockstep_agent::metrics::Metrics::default(),
        Registry::default(),
    );
    metrics.register(&mut registry);
    metrics.called("version", tonic::Code::Ok, Duration::ZERO);
    let mut scrape = String::new();
    prometheus_client::encoding::text::encode(&mut scrape, &registry)?;
    Ok(scrape)
}

/// Adds the metrics of a scrape in the OpenMetrics format.
fn add(metrics: &mut BTreeMap<String, Metric>, scrape: &str) {
    let (mut help, mut current) = ("", String::new());
    for line in scrape.lines() {
        if let Some((_, text)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            help = text.trim_end_matches('.');
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            current = format!("{name}{suffix}");
            let metric = metrics.entry(current.clone()).or_default();
            metric.name.clone_from(&current);
            (metric.kind, metric.help) = (kind.to_owned(), help.to_owned());
        } else if let Some(metric) = metrics.get_mut(&current).filter(|_| !line.starts_with('#')) {
            metric.samples += 1;
            // Every second piece is a value.
            let pieces: Vec<&str> = line.split('"').collect();
            for [name, value] in pieces.as_chunks::<2>().0 {
                let name = name
                    .trim_end_matches('=')
                    .rsplit(['{', ','])
                    .next()
                    .unwrap_or_default();
                if name != "le" {
                    metric.label(name).insert((*value).to_owned());
                }
            }
        }
    }
}

pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

const HEAD: &str = "# Metrics

Generated by `make generate`. Which dashboards and alerts use them, and how to collect them: [observability](../observability.md).

Names of controller-runtime, client-go and Prometheus' client libraries have their usual meaning. The answer is OpenMetrics 1.0 if the
request accepts it, the older text format otherwise.
";

const MANAGER: &str = "
## Manager

At `:8080/metrics` of every replica. No label there holds the name of an object other than its namespace. Only the leader shows gauges of
workloads, gangs, accelerators and agents, so that sums over the replicas are right. Counters change when the status is written.
`priority_class` is empty for gangs without one. Accelerators are the resources of `scheduler.accelerators`.

`lockstep_workloads_not_shown` and the `lockstep_workload_*` with label `name` are at `:8080/metrics/workloads`, if
`metrics.workloads.enabled` is set. Only the leader shows them, for at most `metrics.workloads.max` workloads: running workloads first,
the oldest first. A deleted workload leaves no series.

";

const AGENT: &str = "
## Agent

At `:8080/metrics` of each agent's pod.

";

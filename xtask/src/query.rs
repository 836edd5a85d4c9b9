//! Queries of the dashboards and rules in `config/components`, and checks of them against the
//! registered metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, AggregateExpr, Expr, LabelModifier, VectorSelector};
use serde_json::Value;

use crate::metrics::{Metric, Metrics, OF_THE_SCRAPE, list};

pub(crate) const DASHBOARDS: &str = "config/components/dashboards";
const RULES: &str = "config/components/prometheus/prometheus_rule.yaml";

/// Time of a total in a panel.
const DAY: Duration = Duration::from_hours(24);
/// Replacement for Grafana's `$__rate_interval`, which is not PromQL. No query uses this duration.
const RATE_INTERVAL: Duration = Duration::from_secs(86_413);

/// The dashboards, by file name without extension.
pub fn dashboards(root: &Path) -> Result<BTreeMap<String, Value>> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(root.join(DASHBOARDS))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "json") {
            let name = path.file_stem().context("a file name")?;
            let text = std::fs::read_to_string(&path)?;
            let json = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
            out.insert(name.to_string_lossy().into_owned(), json);
        }
    }
    Ok(out)
}

/// The alerts and recording rules.
pub fn rules(root: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(root.join(RULES))?;
    let object: Value = serde_saphyr::from_str(&text).context(RULES)?;
    let groups = list(&object["spec"]["groups"]);
    Ok(groups.flat_map(|g| list(&g["rules"])).cloned().collect())
}

/// The queries of the panels, each with the title of its panel.
pub fn panel_queries(dashboard: &Value) -> Vec<(&str, String)> {
    let panels = list(&dashboard["panels"]);
    let queries = panels.flat_map(|panel| {
        let targets = list(&panel["targets"]);
        targets.map(|target| (text(&panel["title"]), text(&target["expr"]).to_owned()))
    });
    queries.collect()
}

/// The queries of the annotations, each with its name.
pub fn annotation_queries(dashboard: &Value) -> Vec<(&str, String)> {
    let annotations = list(&dashboard["annotations"]["list"]);
    let queries = annotations.map(|a| (text(&a["name"]), text(&a["expr"]).to_owned()));
    queries.collect()
}

/// For each variable with values from Prometheus, its name and a query for these values.
pub fn variable_queries(dashboard: &Value) -> Vec<(&str, String)> {
    let variables = list(&dashboard["templating"]["list"]);
    let queries = variables.filter_map(|variable| {
        let values = text(&variable["query"]).strip_prefix("label_values(");
        let (series, label) = values.and_then(|v| v.strip_suffix(')')?.rsplit_once(", "))?;
        let query = format!("max by ({label}) ({series})");
        Some((text(&variable["name"]), query))
    });
    queries.collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Rule,
    /// A panel or annotation of a dashboard. Variables of the scrape's labels narrow scraped series.
    /// Rates must use Grafana's interval: a fixed one shows nothing with slower scrapes, and hides
    /// peaks on long ranges. Totals are of a day.
    Panel,
}

/// A selector with the functions around it and its range.
struct Asked<'a> {
    selector: &'a VectorSelector,
    around: Vec<&'a str>,
    range: Option<Duration>,
}

fn parsed(query: &str) -> Result<Expr, String> {
    let stand_in = format!("{}s", RATE_INTERVAL.as_secs());
    parser::parse(&query.replace("$__rate_interval", &stand_in))
}

/// Names of the series in a query; empty if it does not parse.
pub fn series(query: &str) -> BTreeSet<String> {
    let Ok(expr) = parsed(query) else {
        return BTreeSet::new();
    };
    let asked = selectors(&expr).into_iter();
    asked.filter_map(|a| a.selector.name.clone()).collect()
}

/// The series that queries may use: the registered metrics, and the results of recording rules.
#[derive(Debug)]
pub struct KnownSeries {
    pub metrics: Metrics,
    recorded: BTreeSet<String>,
}

impl KnownSeries {
    /// Reads the registered metrics and the rules.
    pub fn read(root: &Path) -> Result<Self> {
        let rules = rules(root)?;
        let recorded = rules.iter().filter_map(|rule| rule["record"].as_str());
        Ok(Self {
            metrics: Metrics::read()?,
            recorded: recorded.map(str::to_owned).collect(),
        })
    }

    /// Returns the errors in a query.
    pub fn mistakes(&self, query: &str, place: Place) -> Vec<String> {
        let expr = match parsed(query) {
            Ok(expr) => expr,
            Err(error) => return vec![format!("does not parse: {error}")],
        };
        let mut out = Vec::new();
        for asked in selectors(&expr) {
            let name = asked.selector.name.clone().unwrap_or_default();
            let is_usual = |range| [RATE_INTERVAL, DAY].contains(&range);
            if place == Place::Panel && asked.range.is_some_and(|r| !is_usual(r)) {
                out.push(format!("{name}: over a time other than $__rate_interval"));
            }
            // Recording rules aggregate over all targets.
            if self.recorded.contains(&name) {
                continue;
            }
            let Some(metric) = self.metrics.of_series(&name) else {
                out.push(format!("no such metric: {name}"));
                continue;
            };
            out.extend(of_selector(&asked, &name, metric));
            if place == Place::Panel {
                out.extend(not_narrowed(asked.selector, &name));
            }
        }
        self.grouping(&expr, &mut out);
        out
    }

    /// Labels in `by (...)` and `on (...)` that no series inside has.
    fn grouping(&self, expr: &Expr, out: &mut Vec<String>) {
        let grouped = match expr {
            Expr::Aggregate(AggregateExpr {
                modifier: Some(LabelModifier::Include(labels)),
                ..
            }) => Some(labels),
            Expr::Binary(binary) => {
                match binary.modifier.as_ref().and_then(|m| m.matching.as_ref()) {
                    Some(LabelModifier::Include(labels)) => Some(labels),
                    Some(LabelModifier::Exclude(_)) | None => None,
                }
            }
            _ => None,
        };
        let selectors = selectors(expr).into_iter();
        let names: Vec<String> = selectors.filter_map(|a| a.selector.name.clone()).collect();
        if let Some(grouped) = grouped.filter(|_| !names.iter().any(|n| self.recorded.contains(n)))
        {
            let metrics = names
                .iter()
                .filter_map(|n| Some((n, self.metrics.of_series(n)?)));
            let labels = metrics.flat_map(|(name, metric)| labels_of(name, metric));
            let inside: BTreeSet<&str> = labels.chain(replaced(expr)).collect();
            for label in grouped
                .labels
                .iter()
                .filter(|l| !inside.contains(l.as_str()))
            {
                out.push(format!("grouped by {label}, which nothing there has"));
            }
        }
        for child in children(expr) {
            self.grouping(child, out);
        }
    }
}

/// Labels of the scrape that no variable of the dashboard narrows.
fn not_narrowed(selector: &VectorSelector, name: &str) -> Vec<String> {
    let narrows = |label: &str, m: &Matcher| {
        let regex = matches!(m.op, MatchOp::Re(_));
        m.name == label && regex && m.value == format!("${label}")
    };
    let matchers = &selector.matchers.matchers;
    let missing = OF_THE_SCRAPE
        .into_iter()
        .filter(|label| !matchers.iter().any(|m| narrows(label, m)));
    missing
        .map(|label| format!("{name}: not narrowed by ${label}"))
        .collect()
}

fn of_selector(asked: &Asked<'_>, name: &str, metric: &Metric) -> Vec<String> {
    let mut out = Vec::new();
    let changes = asked
        .around
        .iter()
        .any(|f| ["rate", "increase"].contains(f));
    if changes == (metric.kind == "gauge") {
        out.push(format!(
            "{name}: counters, and they alone, belong under rate or increase"
        ));
    }
    let known = labels_of(name, metric);
    for matcher in &asked.selector.matchers.matchers {
        if known.contains(matcher.name.as_str()) {
            out.extend(unknown_values(name, metric, matcher));
        } else {
            out.push(format!("{name} has no label {}", matcher.name));
        }
    }
    out
}

/// Label values that no series of the metric has.
fn unknown_values(name: &str, metric: &Metric, matcher: &Matcher) -> Vec<String> {
    let label = matcher.name.as_str();
    let Some(known) = metric.values(label) else {
        return Vec::new();
    };
    let asked: Vec<&str> = match matcher.op {
        MatchOp::Equal | MatchOp::NotEqual => vec![&matcher.value],
        MatchOp::Re(_) | MatchOp::NotRe(_) => matcher.value.split('|').collect(),
    };
    let plain = |value: &&str| {
        value
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
    };
    let unknown = asked
        .into_iter()
        .filter(|value| plain(value) && !known.contains(*value));
    unknown
        .map(|value| format!("{name}: no {label} is {value:?}"))
        .collect()
}

/// Labels of a series, including labels of the scrape.
fn labels_of<'a>(name: &str, metric: &'a Metric) -> BTreeSet<&'a str> {
    let buckets = name.ends_with("_bucket").then_some("le");
    let own = metric.labels.iter().map(|(label, _)| label.as_str());
    own.chain(OF_THE_SCRAPE).chain(buckets).collect()
}

/// Labels that `label_replace` writes somewhere inside.
fn replaced(expr: &Expr) -> Vec<&str> {
    let mut out: Vec<&str> = children(expr).into_iter().flat_map(replaced).collect();
    if let Expr::Call(call) = expr
        && call.func.name == "label_replace"
        && let Some(Expr::StringLiteral(label)) = call.args.args.get(1).map(|arg| &**arg)
    {
        out.push(&label.val);
    }
    out
}

fn children(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::Aggregate(aggregate) => vec![&*aggregate.expr],
        Expr::Binary(binary) => vec![&*binary.lhs, &*binary.rhs],
        Expr::Paren(paren) => vec![&*paren.expr],
        Expr::Unary(unary) => vec![&*unary.expr],
        Expr::Subquery(subquery) => vec![&*subquery.expr],
        Expr::Call(call) => call.args.args.iter().map(|arg| &**arg).collect(),
        _ => Vec::new(),
    }
}

fn selectors(expr: &Expr) -> Vec<Asked<'_>> {
    let mut out = Vec::new();
    collect(expr, &[], &mut out);
    out
}

fn collect<'a>(expr: &'a Expr, around: &[&'a str], out: &mut Vec<Asked<'a>>) {
    let asked = |selector: &'a VectorSelector, range| Asked {
        selector,
        around: around.to_vec(),
        range,
    };
    match expr {
        Expr::VectorSelector(selector) => out.push(asked(selector, None)),
        Expr::MatrixSelector(matrix) => out.push(asked(&matrix.vs, Some(matrix.range))),
        Expr::Call(call) => {
            let around = [around, &[call.func.name]].concat();
            for arg in &call.args.args {
                collect(arg, &around, out);
            }
        }
        other => {
            for child in children(other) {
                collect(child, around, out);
            }
        }
    }
}

//! Checks of Prometheus queries against the table of metrics.

use std::collections::BTreeSet;
use std::time::Duration;

use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, AggregateExpr, Expr, LabelModifier, VectorSelector};

use crate::metric::Kind;
use crate::metrics::{OF_THE_SCRAPE, of_series, values};

/// Replacement for Grafana's `$__rate_interval`, which is not PromQL. No query uses this duration.
const RATE_INTERVAL: Duration = Duration::from_secs(86_413);

#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    Rule,
    /// A panel of a dashboard. Variables named like these labels narrow scraped series. Rates must
    /// use Grafana's interval: a fixed one shows nothing with slower scrapes, and hides peaks on
    /// long ranges.
    Panel(&'a [&'a str]),
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

/// Returns the errors in a query. `recorded`: series of recording rules, with their labels.
pub fn mistakes(query: &str, recorded: &[(&str, &[&str])], place: Place<'_>) -> Vec<String> {
    let expr = match parsed(query) {
        Ok(expr) => expr,
        Err(error) => return vec![format!("does not parse: {error}")],
    };
    let mut out = Vec::new();
    for asked in selectors(&expr) {
        out.extend(of_selector(&asked, recorded));
        if let Place::Panel(labels) = place {
            out.extend(of_panel(&asked, recorded, labels));
        }
    }
    grouping(&expr, recorded, &mut out);
    out
}

/// Names of the series in a query; empty if it does not parse.
pub fn series(query: &str) -> BTreeSet<String> {
    let Ok(expr) = parsed(query) else {
        return BTreeSet::new();
    };
    let asked = selectors(&expr).into_iter();
    asked.filter_map(|a| a.selector.name.clone()).collect()
}

/// Errors of a selector that apply only to panels.
fn of_panel(asked: &Asked<'_>, recorded: &[(&str, &[&str])], labels: &[&str]) -> Vec<String> {
    let name = asked.selector.name.clone().unwrap_or_default();
    let mut out = Vec::new();
    if asked.range.is_some_and(|range| range != RATE_INTERVAL) {
        out.push(format!("{name}: over a time other than $__rate_interval"));
    }
    // Recording rules aggregate over all targets.
    if recorded.iter().any(|(n, _)| *n == name) {
        return out;
    }
    let matchers = &asked.selector.matchers.matchers;
    for label in labels {
        let narrows = |m: &Matcher| {
            let regex = matches!(m.op, MatchOp::Re(_));
            m.name == *label && regex && m.value == format!("${label}")
        };
        if !matchers.iter().any(narrows) {
            out.push(format!("{name}: not narrowed by ${label}"));
        }
    }
    out
}

fn of_selector(asked: &Asked<'_>, recorded: &[(&str, &[&str])]) -> Vec<String> {
    let mut out = Vec::new();
    let name = asked.selector.name.clone().unwrap_or_default();
    let Some(known) = labels_of(&name, recorded) else {
        return vec![format!("no such metric: {name}")];
    };
    let kind = of_series(&name).map(|m| m.kind);
    let counts = matches!(kind, Some(Kind::Counter | Kind::Histogram));
    let changes = asked
        .around
        .iter()
        .any(|f| ["rate", "increase"].contains(f));
    if counts != changes {
        out.push(format!(
            "{name}: counters, and they alone, belong under rate or increase"
        ));
    }
    let matchers = asked.selector.matchers.matchers.iter();
    let matched: BTreeSet<&str> = matchers.map(|m| m.name.as_str()).collect();
    for label in matched.iter().filter(|l| !known.contains(**l)) {
        out.push(format!("{name} has no label {label}"));
    }
    for matcher in &asked.selector.matchers.matchers {
        out.extend(unknown_values(&name, matcher));
    }
    out
}

/// Label values that no series of the metric has.
fn unknown_values(name: &str, matcher: &Matcher) -> Vec<String> {
    let label = matcher.name.as_str();
    let Some(known) = of_series(name).and_then(|metric| values::of(metric, label)) else {
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
        .filter(|value| plain(value) && !known.contains(value));
    unknown
        .map(|value| format!("{name}: no {label} is {value:?}"))
        .collect()
}

/// Labels of a series, including labels of the scrape; `None` if the series is unknown.
fn labels_of<'a>(name: &str, recorded: &[(&str, &'a [&'a str])]) -> Option<BTreeSet<&'a str>> {
    if let Some((_, labels)) = recorded.iter().find(|(n, _)| *n == name) {
        return Some(labels.iter().copied().collect());
    }
    let metric = of_series(name)?;
    let buckets = name.ends_with("_bucket").then_some("le");
    Some(
        metric
            .labels
            .iter()
            .copied()
            .chain(OF_THE_SCRAPE)
            .chain(buckets)
            .collect(),
    )
}

/// Labels in `by (...)` and `on (...)` that no series inside has.
fn grouping(expr: &Expr, recorded: &[(&str, &[&str])], out: &mut Vec<String>) {
    let named = match expr {
        Expr::Aggregate(AggregateExpr {
            modifier: Some(LabelModifier::Include(labels)),
            ..
        }) => Some(labels),
        Expr::Binary(binary) => match binary.modifier.as_ref().and_then(|m| m.matching.as_ref()) {
            Some(LabelModifier::Include(labels)) => Some(labels),
            Some(LabelModifier::Exclude(_)) | None => None,
        },
        _ => None,
    };
    if let Some(named) = named {
        let inside: BTreeSet<&str> = selectors(expr)
            .iter()
            .filter_map(|a| labels_of(a.selector.name.as_deref()?, recorded))
            .flatten()
            .collect();
        for label in named.labels.iter().filter(|l| !inside.contains(l.as_str())) {
            out.push(format!("grouped by {label}, which nothing there has"));
        }
    }
    for child in children(expr) {
        grouping(child, recorded, out);
    }
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

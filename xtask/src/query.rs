//! What is wrong with a query to Prometheus, as far as the table of metrics can tell.

use std::collections::BTreeSet;

use promql_parser::parser::{self, AggregateExpr, Expr, LabelModifier, VectorSelector};

use crate::metric::Kind;
use crate::metrics::{OF_THE_SCRAPE, of_series};

/// A selector, and the functions around it.
type Asked<'a> = (&'a VectorSelector, Vec<&'a str>);

/// Mistakes in a query. `recorded`: series that recording rules make, with their labels.
/// `must_match`: a label that every selector has to name, if any.
pub fn mistakes(
    query: &str,
    recorded: &[(&str, &[&str])],
    must_match: Option<&str>,
) -> Vec<String> {
    // Grafana's variable is no PromQL.
    let expr = match parser::parse(&query.replace("$__rate_interval", "5m")) {
        Ok(expr) => expr,
        Err(error) => return vec![format!("does not parse: {error}")],
    };
    let mut out = Vec::new();
    for (selector, around) in selectors(&expr) {
        out.extend(of_selector(selector, &around, recorded, must_match));
    }
    grouping(&expr, recorded, &mut out);
    out
}

fn of_selector(
    selector: &VectorSelector,
    around: &[&str],
    recorded: &[(&str, &[&str])],
    must_match: Option<&str>,
) -> Vec<String> {
    let mut out = Vec::new();
    let name = selector.name.clone().unwrap_or_default();
    let Some(known) = labels_of(&name, recorded) else {
        return vec![format!("no such metric: {name}")];
    };
    let kind = of_series(&name).map(|m| m.kind);
    let counts = matches!(kind, Some(Kind::Counter | Kind::Histogram));
    let changes = around.iter().any(|f| ["rate", "increase"].contains(f));
    if counts != changes {
        out.push(format!(
            "{name}: counters, and they alone, belong under rate or increase"
        ));
    }
    let matched: BTreeSet<&str> = selector
        .matchers
        .matchers
        .iter()
        .map(|m| m.name.as_str())
        .collect();
    for label in matched.iter().filter(|l| !known.contains(**l)) {
        out.push(format!("{name} has no label {label}"));
    }
    if let Some(label) = must_match.filter(|label| !matched.contains(label)) {
        out.push(format!("{name}: no {label}"));
    }
    out
}

/// The labels that a series has, those of the scrape included; `None` where there is no such series.
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

/// Labels in `by (...)` and `on (...)` that nothing inside has.
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
            .filter_map(|(s, _)| labels_of(s.name.as_deref()?, recorded))
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
    match expr {
        Expr::VectorSelector(selector) => out.push((selector, around.to_vec())),
        Expr::MatrixSelector(matrix) => out.push((&matrix.vs, around.to_vec())),
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

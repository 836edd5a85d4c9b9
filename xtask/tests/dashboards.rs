//! Dashboards ask for what is there, and say what they show. Each rule is shown a mistake.

// `cfg(test)` always holds here; it tells clippy that helpers of tests may unwrap.
#![cfg(test)]

use std::collections::BTreeSet;

use promql_parser::parser::{self, Expr, VectorSelector};
use xtask::dashboards::{ALL, Dashboard, Kind, Panel};

/// Names in the first columns of the tables in docs/reference/metrics.md. `_more_total` after
/// `some_name_total` stands for `some_name_more_total`.
fn documented() -> BTreeSet<String> {
    let page = include_str!("../../docs/reference/metrics.md");
    let mut names = BTreeSet::new();
    for row in page.lines().filter_map(|l| l.strip_prefix("| `")) {
        let cell = row.split(" | ").next().unwrap();
        let mut stem = "";
        for name in cell.split('`').filter(|n| n.contains('_')) {
            if name.starts_with('_') {
                names.insert(format!("{stem}{name}"));
            } else {
                stem = name.rsplit_once('_').unwrap().0;
                names.insert(name.to_owned());
            }
        }
    }
    names
}

/// What a query asks for, and the functions around it.
fn selectors<'a>(
    expr: &'a Expr,
    around: &[&'a str],
    out: &mut Vec<(&'a VectorSelector, Vec<&'a str>)>,
) {
    match expr {
        Expr::VectorSelector(selector) => out.push((selector, around.to_vec())),
        Expr::MatrixSelector(matrix) => out.push((&matrix.vs, around.to_vec())),
        Expr::Aggregate(aggregate) => selectors(&aggregate.expr, around, out),
        Expr::Binary(binary) => {
            selectors(&binary.lhs, around, out);
            selectors(&binary.rhs, around, out);
        }
        Expr::Paren(paren) => selectors(&paren.expr, around, out),
        Expr::Unary(unary) => selectors(&unary.expr, around, out),
        Expr::Call(call) => {
            let around = [around, &[call.func.name]].concat();
            for arg in &call.args.args {
                selectors(arg, &around, out);
            }
        }
        _ => {}
    }
}

/// What is wrong with a query.
fn mistakes_of(query: &str, known: &BTreeSet<String>) -> Vec<String> {
    let expr = match parser::parse(&query.replace("$__rate_interval", "5m")) {
        Ok(expr) => expr,
        Err(error) => return vec![format!("does not parse: {error}")],
    };
    let mut asked = Vec::new();
    selectors(&expr, &[], &mut asked);
    let mut out = Vec::new();
    for (selector, around) in asked {
        let name = selector.name.clone().unwrap_or_default();
        let parts = ["_bucket", "_sum", "_count"];
        let base = parts
            .iter()
            .find_map(|p| name.strip_suffix(p))
            .unwrap_or(&name);
        if !known.contains(base) {
            out.push(format!("no such metric: {name}"));
        }
        let counts = name.ends_with("_total") || base != name;
        let changes = around.iter().any(|f| ["rate", "increase"].contains(f));
        if counts != changes {
            out.push(format!(
                "{name}: counters, and they alone, belong under rate or increase"
            ));
        }
        if !selector.matchers.matchers.iter().any(|m| m.name == "job") {
            out.push(format!("{name}: no job"));
        }
    }
    out
}

fn mistakes(dashboards: &[Dashboard]) -> Vec<String> {
    let known = documented();
    let mut out = Vec::new();
    for dashboard in dashboards {
        for panel in dashboard.panels {
            let place = format!("{} / {}", dashboard.title, panel.title);
            let texts = [panel.title, panel.description, panel.unit];
            if texts.iter().any(|t| t.is_empty()) || panel.queries.is_empty() {
                out.push(format!(
                    "{place}: title, description, unit or query is missing"
                ));
            }
            for (query, _) in panel.queries {
                let found = mistakes_of(query, &known);
                out.extend(found.into_iter().map(|m| format!("{place}: {m}")));
            }
        }
    }
    out
}

#[test]
fn dashboards_ask_for_metrics_that_are_documented_in_queries_that_parse() {
    assert_eq!(mistakes(&ALL), Vec::<String>::new());
}

#[test]
fn every_rule_finds_its_mistake() {
    for (query, mistake) in [
        (r#"sum(lockstep_gangs{job=~"$job"}"#, "does not parse"),
        (
            r#"lockstep_gang{job=~"$job"}"#,
            "no such metric: lockstep_gang",
        ),
        (
            r#"lockstep_preemptions_total{job=~"$job"}"#,
            "under rate or increase",
        ),
        (
            r#"rate(lockstep_gangs{job=~"$job"}[5m])"#,
            "under rate or increase",
        ),
        ("lockstep_gangs", "no job"),
    ] {
        let found = mistakes_of(query, &documented());
        assert!(
            found.iter().any(|m| m.contains(mistake)),
            "{query}: {found:?}"
        );
    }
    let silent = Panel {
        title: "t",
        description: "",
        unit: "s",
        kind: Kind::Lines,
        width: 12,
        queries: &[],
    };
    let panels: &'static [Panel] = Box::leak(Box::new([silent]));
    let dashboard = Dashboard { panels, ..ALL[0] };
    assert_eq!(mistakes(&[dashboard]).len(), 1);
}

#[test]
fn panels_have_ids_of_their_own_and_places_that_do_not_overlap() {
    for dashboard in ALL {
        let json = dashboard.json();
        let mut taken = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for panel in json["panels"].as_array().unwrap() {
            assert!(ids.insert(panel["id"].as_u64().unwrap()));
            let at = |k: &str| panel["gridPos"][k].as_u64().unwrap();
            for x in at("x")..at("x") + at("w") {
                assert!(x < 24, "{panel}");
                assert!(taken.insert((x, at("y"))), "{panel}");
            }
        }
    }
}

//! Dashboards ask for what is there, and say what they show. Each rule is shown a mistake.

// `cfg(test)` always holds here; it tells clippy that helpers of tests may unwrap.
#![cfg(test)]

use std::collections::BTreeSet;

use xtask::alerts::recorded;
use xtask::dashboards::{ALL, Choice, Dashboard, Kind, Panel, SOURCES, Variable};
use xtask::query;

/// What is wrong with a query of a dashboard.
fn mistakes_of(text: &str) -> Vec<String> {
    // What rules record is of all jobs.
    let recorded = recorded();
    let of_rule = recorded.iter().any(|(name, _)| text.contains(name));
    query::mistakes(text, &recorded, (!of_rule).then_some("job"))
}

/// What is wrong with a query, whatever its metrics come from.
fn from_each_source(text: &str) -> Vec<String> {
    let of = |source: &&str| mistakes_of(&text.replace("${source}", source));
    SOURCES.iter().flat_map(of).collect()
}

/// Variables of Grafana's own that queries may name.
const GRAFANAS: [&str; 1] = ["__rate_interval"];

/// Variables that nobody chooses.
fn unknown_variables(dashboard: &Dashboard, text: &str) -> Vec<String> {
    let names = text.split('$').skip(1).map(|rest| {
        let rest = rest.trim_start_matches('{');
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    });
    let chosen = |name: &&str| dashboard.variables.iter().any(|v| v.name == *name);
    names
        .filter(|name| !chosen(name) && !GRAFANAS.contains(name))
        .map(|name| format!("nobody chooses ${name}"))
        .collect()
}

/// Values of a label of a series that is there and has it.
fn mistakes_of_variable(dashboard: &Dashboard, variable: &Variable) -> Vec<String> {
    match variable.choice {
        Choice::Fixed(values) => {
            let none = values.is_empty();
            none.then(|| "nothing to choose".to_owned())
                .into_iter()
                .collect()
        }
        Choice::Some { of, label } | Choice::One { of, label } => {
            let query = format!("max by ({label}) ({of})");
            let mut found = unknown_variables(dashboard, of);
            let wrong = from_each_source(&query);
            // Which jobs there are is asked of all.
            found.extend(
                wrong
                    .into_iter()
                    .filter(|m| variable.name != "job" || !m.ends_with("no job")),
            );
            found
        }
    }
}

fn mistakes(dashboards: &[Dashboard]) -> Vec<String> {
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
                let found = from_each_source(query);
                out.extend(found.into_iter().map(|m| format!("{place}: {m}")));
                let unknown = unknown_variables(dashboard, query);
                out.extend(unknown.into_iter().map(|m| format!("{place}: {m}")));
            }
        }
        for variable in dashboard.variables {
            let found = mistakes_of_variable(dashboard, variable);
            let place = format!("{} / ${}", dashboard.title, variable.name);
            out.extend(found.into_iter().map(|m| format!("{place}: {m}")));
        }
    }
    out
}

#[test]
fn dashboards_ask_for_metrics_and_labels_that_are_there_in_queries_that_parse() {
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
        (
            r#"lockstep_gangs{job=~"$job", phase="x"}"#,
            "lockstep_gangs has no label phase",
        ),
        (
            r#"sum by (phase) (lockstep_gangs{job=~"$job"})"#,
            "grouped by phase",
        ),
    ] {
        let found = mistakes_of(query);
        assert!(
            found.iter().any(|m| m.contains(mistake)),
            "{query}: {found:?}"
        );
    }
    let of_other = |query: &str| unknown_variables(&ALL[0], query);
    assert_eq!(
        of_other(r#"${source}_info{job=~"$job"}"#),
        ["nobody chooses $source"]
    );
    let found = from_each_source(r#"sum(${source}_colour{job=~"$job"})"#);
    assert_eq!(found.len(), SOURCES.len(), "{found:?}");
    for (of, label, mistake) in [
        (
            r#"${source}_info{job=~"$job"}"#,
            "colour",
            "grouped by colour",
        ),
        (
            r#"${source}_info{job=~"$jobs"}"#,
            "name",
            "nobody chooses $jobs",
        ),
    ] {
        let variable = Variable {
            name: "workload",
            label: "Workload",
            choice: Choice::One { of, label },
        };
        let found = mistakes_of_variable(&ALL[1], &variable);
        assert!(found.iter().any(|m| m.contains(mistake)), "{of}: {found:?}");
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

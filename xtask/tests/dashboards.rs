//! Dashboards ask for what is there, and say what they show. Each rule is shown a mistake.

// `cfg(test)` always holds here; it tells clippy that helpers of tests may unwrap.
#![cfg(test)]

use std::collections::BTreeSet;

use xtask::alerts::recorded;
use xtask::dashboards::{ALL, Dashboard, Kind, Panel};
use xtask::query;

/// What is wrong with a query of a dashboard.
fn mistakes_of(text: &str) -> Vec<String> {
    // What rules record is of all jobs.
    let recorded = recorded();
    let of_rule = recorded.iter().any(|(name, _)| text.contains(name));
    query::mistakes(text, &recorded, (!of_rule).then_some("job"))
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
                let found = mistakes_of(query);
                out.extend(found.into_iter().map(|m| format!("{place}: {m}")));
            }
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

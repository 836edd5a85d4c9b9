//! Dashboards use existing series and have descriptions. A test with a fault covers each rule.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

use std::collections::BTreeSet;

use serde_json::{Value, json};
use xtask::alerts::{ALERTS, RECORDINGS, recorded};
use xtask::dashboards::{ALL, Choice, Dashboard, Kind, Panel, SCRAPED, SOURCES, Variable};
use xtask::metric::Metric;
use xtask::query::{self, Place};
use xtask::{dashboards, metrics};

/// Metrics without panel and rule, with the reason.
const SHOWN_ELSEWHERE: [(&str, &str); 1] = [(
    "lockstep_native_scheduling",
    "a fact of the cluster that hardly changes: `kubectl lockstep doctor` tells it",
)];

/// Faults of a dashboard's query, in Grafana's format.
fn mistakes_of(text: &str) -> Vec<String> {
    let labels = SCRAPED.map(|(label, _)| label);
    query::mistakes(text, &recorded(), Place::Panel(&labels))
}

/// Faults of a query, for each source of its metrics.
fn from_each_source(text: &str) -> Vec<String> {
    let of = |source: &&str| mistakes_of(&text.replace("${source}", source));
    SOURCES.iter().flat_map(of).collect()
}

/// Grafana's built-in variables in queries.
const GRAFANAS: [&str; 1] = ["__rate_interval"];

/// Variables that the dashboard does not define.
fn unknown_variables(dashboard: &Dashboard, text: &str) -> Vec<String> {
    let names = text.split('$').skip(1).map(|rest| {
        let rest = rest.trim_start_matches('{');
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    });
    let variables = dashboard.variables();
    let chosen = |name: &&str| variables.iter().any(|v| v.name == *name);
    names
        .filter(|name| !chosen(name) && !GRAFANAS.contains(name))
        .map(|name| format!("nobody chooses ${name}"))
        .collect()
}

/// Faults of a variable: its series must exist and have its label.
fn mistakes_of_variable(
    dashboard: &Dashboard,
    before: &[Variable],
    variable: &Variable,
) -> Vec<String> {
    let label = match variable.choice {
        Choice::Fixed([]) => return vec!["nothing to choose".to_owned()],
        Choice::Fixed(_) => return Vec::new(),
        Choice::Some { label, .. } | Choice::One { label, .. } => label,
    };
    let series = variable.series(before).unwrap();
    let mut found = unknown_variables(dashboard, &series);
    for source in SOURCES {
        let series = series.replace("${source}", source);
        let query = format!("max by ({label}) ({series})");
        found.extend(query::mistakes(&query, &[], Place::Rule));
    }
    found
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
            for (query, _) in panel.asks() {
                // Accelerator-seconds are no elapsed time.
                if panel.unit == "s" && query.contains("accelerator_seconds") {
                    out.push(format!("{place}: accelerator-seconds as a time"));
                }
                let found = from_each_source(&query);
                out.extend(found.into_iter().map(|m| format!("{place}: {m}")));
                let unknown = unknown_variables(dashboard, &query);
                out.extend(unknown.into_iter().map(|m| format!("{place}: {m}")));
            }
        }
        let variables = dashboard.variables();
        for (at, variable) in variables.iter().enumerate() {
            let found = mistakes_of_variable(dashboard, &variables[..at], variable);
            let place = format!("{} / ${}", dashboard.title, variable.name);
            out.extend(found.into_iter().map(|m| format!("{place}: {m}")));
        }
    }
    out
}

/// Panels with a fixed data source, and variables without a selection.
fn mistakes_in_json(dashboard: &Value) -> Vec<String> {
    let mut out = Vec::new();
    let chosen = json!({"type": "prometheus", "uid": "${datasource}"});
    for panel in dashboard["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array().unwrap();
        let all = std::iter::once(panel).chain(targets);
        let fixed = all.filter(|part| part["datasource"] != chosen).count();
        if fixed > 0 {
            out.push(format!(
                "{}: {fixed} times another data source",
                panel["title"]
            ));
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let named = |name: &str| variables.iter().find(|v| v["name"] == name);
    let source =
        named("datasource").filter(|v| v["type"] == "datasource" && v["query"] == "prometheus");
    if source.is_none() {
        out.push("nobody chooses the data source".to_owned());
    }
    for (name, _) in SCRAPED {
        // `.*` also matches series without the label.
        let some_or_all =
            |v: &&Value| v["multi"] == true && v["includeAll"] == true && v["allValue"] == ".*";
        if named(name).is_none_or(|v| !some_or_all(&v)) {
            out.push(format!("nobody chooses ${name}, or all of them"));
        }
    }
    out
}

/// Metrics without panel and rule.
fn unseen(exported: &[Metric], dashboards: &[Dashboard]) -> Vec<&'static str> {
    let panels = dashboards.iter().flat_map(|d| d.panels);
    let of_panels = panels.flat_map(Panel::asks).map(|(query, _)| query);
    let of_rules = RECORDINGS
        .iter()
        .map(|r| r.expr)
        .chain(ALERTS.iter().map(|a| a.expr));
    let seen: BTreeSet<&str> = of_panels
        .chain(of_rules.map(str::to_owned))
        .flat_map(|query| query::series(&query.replace("${source}", SOURCES[0])))
        .filter_map(|series| Some(metrics::of_series(&series)?.name))
        .collect();
    let elsewhere = |name: &str| SHOWN_ELSEWHERE.iter().any(|(n, _)| *n == name);
    let names = exported.iter().map(|m| m.name);
    names
        .filter(|name| !seen.contains(name) && !elsewhere(name))
        .collect()
}

fn exported() -> Vec<Metric> {
    metrics::all().copied().collect()
}

#[test]
fn dashboard_queries_parse_and_use_existing_metrics_and_labels() {
    assert_eq!(mistakes(&ALL), Vec::<String>::new());
}

#[test]
fn every_rule_about_queries_finds_its_mistake() {
    let chosen = r#"cluster=~"$cluster", job=~"$job", instance=~"$instance""#;
    for (query, mistake) in [
        ("sum(lockstep_gangs{$scraped}", "does not parse"),
        ("lockstep_gang{$scraped}", "no such metric: lockstep_gang"),
        (
            "lockstep_preemptions_total{$scraped}",
            "under rate or increase",
        ),
        (
            "rate(lockstep_gangs{$scraped}[$__rate_interval])",
            "under rate or increase",
        ),
        (
            "rate(lockstep_preemptions_total{$scraped}[5m])",
            "over a time other than $__rate_interval",
        ),
        (
            "sum(increase(lockstep_preemptions_total{$scraped}[1h]))",
            "over a time other than $__rate_interval",
        ),
        ("lockstep_gangs", "not narrowed by $cluster"),
        (
            r#"lockstep_gangs{cluster=~"$cluster", job=~"$job"}"#,
            "not narrowed by $instance",
        ),
        (
            r#"lockstep_gangs{cluster=~"$cluster", job="lockstep", instance=~"$instance"}"#,
            "not narrowed by $job",
        ),
        (
            r#"lockstep_gangs{$scraped, phase="x"}"#,
            "lockstep_gangs has no label phase",
        ),
        (
            "sum by (phase) (lockstep_gangs{$scraped})",
            "grouped by phase",
        ),
    ] {
        let found = mistakes_of(&query.replace("$scraped", chosen));
        assert!(
            found.iter().any(|m| m.contains(mistake)),
            "{query}: {found:?}"
        );
    }
    let found = from_each_source(&format!("sum(${{source}}_colour{{{chosen}}})"));
    assert_eq!(found.len(), SOURCES.len(), "{found:?}");
}

#[test]
fn a_label_value_that_no_series_has_is_found() {
    let of = |query: &str| query::mistakes(query, &[], Place::Rule);
    for (query, mistake) in [
        (
            r#"rate(lockstep_write_errors_total{class="denied"}[5m])"#,
            r#"lockstep_write_errors_total: no class is "denied""#,
        ),
        (
            r#"rate(lockstep_write_errors_total{class=~"invalid|denied"}[5m])"#,
            r#"lockstep_write_errors_total: no class is "denied""#,
        ),
        (
            r#"lockstep_gangs{state!="queued"}"#,
            r#"lockstep_gangs: no state is "queued""#,
        ),
        (
            r#"lockstep_workload_conditions{condition="Broken", reason="Any"}"#,
            r#"lockstep_workload_conditions: no condition is "Broken""#,
        ),
        (
            r#"rate(lockstep_recovery_seconds_count{action="Restart"}[5m])"#,
            r#"lockstep_recovery_seconds_count: no action is "Restart""#,
        ),
        (
            r#"lockstep_accelerators{state="placed"}"#,
            r#"lockstep_accelerators: no state is "placed""#,
        ),
    ] {
        assert_eq!(of(query), [mistake], "{query}");
    }
    for right in [
        r#"rate(lockstep_write_errors_total{class=~"invalid|forbidden"}[5m])"#,
        r#"lockstep_workloads{phase=~"New|Run.+"}"#,
        r#"lockstep_waiting_gangs{reason="Any"}"#,
    ] {
        assert_eq!(of(right), Vec::<String>::new(), "{right}");
    }
}

#[test]
fn the_conditions_that_queries_may_name_are_those_of_workloads() {
    let page = include_str!("../../docs/reference/conditions.md");
    let mut kinds = page.split("\n## ");
    let of_workloads = kinds.find(|k| k.starts_with("TrainingWorkload\n")).unwrap();
    let headings = of_workloads.lines().filter_map(|l| l.strip_prefix("### "));
    assert_eq!(headings.collect::<Vec<_>>(), metrics::values::OF_WORKLOADS);
}

#[test]
fn every_rule_about_variables_and_panels_finds_its_mistake() {
    assert_eq!(
        unknown_variables(&ALL[0], r#"${source}_info{job=~"$job"}"#),
        ["nobody chooses $source"]
    );
    for (of, label, mistake) in [
        ("${source}_info", "colour", "grouped by colour"),
        ("${sauce}_info", "name", "nobody chooses $sauce"),
        ("${source}_gone", "name", "no such metric"),
    ] {
        let variable = Variable {
            name: "workload",
            label: "Workload",
            choice: Choice::One { of, label },
        };
        let found = mistakes_of_variable(&ALL[1], &ALL[1].variables(), &variable);
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
    let lost = Panel {
        description: "d",
        queries: &[(
            "sum(lockstep_workload_lost_accelerator_seconds{$scraped})",
            "l",
        )],
        ..silent
    };
    let panels: &'static [Panel] = Box::leak(Box::new([silent, lost]));
    let dashboard = Dashboard { panels, ..ALL[0] };
    assert_eq!(
        mistakes(&[dashboard]),
        [
            "Lockstep / Fleet / t: title, description, unit or query is missing",
            "Lockstep / Fleet / t: accelerator-seconds as a time"
        ]
    );
}

#[test]
fn the_reader_chooses_data_source_cluster_job_and_instance_of_every_panel() {
    for dashboard in ALL {
        assert_eq!(mistakes_in_json(&dashboard.json()), Vec::<String>::new());
    }
    let without = |name: &str, json: &mut Value| {
        let variables = json["templating"]["list"].as_array_mut().unwrap();
        variables.retain(|v| v["name"] != name);
    };
    let fixed = json!({"type": "prometheus", "uid": "P1809F7CD0C75ACF3"});
    for dashboard in ALL {
        let mut json = dashboard.json();
        json["panels"][0]["datasource"] = fixed.clone();
        json["panels"][1]["targets"][0]["datasource"] = Value::Null;
        assert_eq!(mistakes_in_json(&json).len(), 2);
        for name in ["datasource", "cluster", "job", "instance"] {
            let mut json = dashboard.json();
            without(name, &mut json);
            let found = mistakes_in_json(&json);
            assert_eq!(found.len(), 1, "{found:?}");
        }
        let mut json = dashboard.json();
        let variables = json["templating"]["list"].as_array_mut().unwrap();
        let cluster = variables.iter_mut().find(|v| v["name"] == "cluster");
        // Series without the label would disappear.
        cluster.unwrap()["allValue"] = json!(".+");
        assert_eq!(mistakes_in_json(&json).len(), 1);
    }
}

#[test]
fn every_metric_is_in_a_panel_or_a_rule_or_it_is_said_why_not() {
    assert_eq!(unseen(&exported(), &ALL), Vec::<&str>::new());
    for (name, why) in SHOWN_ELSEWHERE {
        assert!(exported().iter().any(|m| m.name == name), "{name}: {why}");
    }
    let new = Metric {
        name: "lockstep_moods",
        ..exported()[0]
    };
    assert_eq!(unseen(&[new], &ALL), ["lockstep_moods"]);
    // Only the dashboard of the agents shows their metrics.
    let others: Vec<Dashboard> = ALL.into_iter().filter(|d| d.name != "agents").collect();
    assert!(unseen(&exported(), &others).contains(&"lockstep_agent_runtime_calls_total"));
}

/// Dashboard files missing in a component.
fn left_out(component: &str) -> Vec<String> {
    let files = dashboards::files();
    let names = files
        .iter()
        .map(|(path, _)| path.file_name().unwrap().to_str().unwrap());
    names
        .filter(|name| !component.contains(&format!("  - {name}\n")))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_component_brings_every_dashboard() {
    let component = include_str!("../../config/components/dashboards/kustomization.yaml");
    assert_eq!(left_out(component), Vec::<String>::new());
    let without = component.replace("  - fleet.json\n", "");
    assert_eq!(left_out(&without), ["fleet.json"]);
}

/// Panels with a duplicate id, overlapping another panel or beyond the edge.
fn mistakes_of_places(dashboard: &Value) -> Vec<String> {
    let mut out = Vec::new();
    let mut taken = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = &panel["title"];
        if !ids.insert(panel["id"].as_u64().unwrap()) {
            out.push(format!("{title}: an id twice"));
        }
        let at = |k: &str| panel["gridPos"][k].as_u64().unwrap();
        for x in at("x")..at("x") + at("w") {
            if x >= 24 {
                out.push(format!("{title}: beyond the edge"));
            }
            if !taken.insert((x, at("y"))) {
                out.push(format!("{title}: over another"));
            }
        }
    }
    out
}

#[test]
fn panels_have_ids_of_their_own_and_places_that_do_not_overlap() {
    type Change = fn(&mut Value);
    let mistakes: [(Change, &str); 3] = [
        (
            |panels| panels[1]["id"] = panels[0]["id"].clone(),
            "an id twice",
        ),
        (
            |panels| panels[1]["gridPos"] = panels[0]["gridPos"].clone(),
            "over another",
        ),
        (
            |panels| panels[0]["gridPos"]["x"] = json!(23),
            "beyond the edge",
        ),
    ];
    for dashboard in ALL {
        let json = dashboard.json();
        assert_eq!(mistakes_of_places(&json), Vec::<String>::new());
        for (change, mistake) in mistakes {
            let mut json = json.clone();
            change(&mut json["panels"]);
            let found = mistakes_of_places(&json);
            assert!(found.iter().any(|m| m.ends_with(mistake)), "{found:?}");
        }
    }
}

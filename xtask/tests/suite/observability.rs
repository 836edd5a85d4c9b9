//! Dashboards and rules query registered metrics. Runbooks and docs cover every alert.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lockstep_api::workload::FailureAction;
use proc_macro2::{TokenStream, TokenTree};
use syn::Lit;
use xtask::query::{
    self, KnownSeries, Place, annotation_queries, dashboards, panel_queries, rules,
    variable_queries,
};

/// Metrics without panel and rule, with the reason.
const SHOWN_ELSEWHERE: [(&str, &str); 2] = [
    (
        "lockstep_native_scheduling",
        "a property of the cluster that hardly changes; `kubectl lockstep doctor` reports it",
    ),
    (
        "lockstep_native_scheduling_pod_field",
        "a property of the cluster that hardly changes; `kubectl lockstep doctor` reports it",
    ),
];
/// Prefixes of metric names.
const PREFIXES: [&str; 6] = [
    "lockstep_",
    "controller_runtime_",
    "workqueue_",
    "rest_client_",
    "process_",
    "leader_election_",
];
/// String literals with these prefixes that are names of programs.
const PROGRAMS: [&str; 2] = ["lockstep_manager", "lockstep_agent"];
/// Headings of a runbook, in order.
const HEADINGS: [&str; 7] = [
    "Meaning",
    "Impact",
    "Can it wait?",
    "Look at",
    "Do",
    "Whom to call",
    "Prevent",
];
/// First words of the answers to "Can it wait?", until morning.
const WAITS: [&str; 3] = ["Yes", "No", "Depends"];
/// Matchers of the labels of the scrape in every panel.
const NARROWED: &str = r#"cluster=~"$cluster", job=~"$job", instance=~"$instance""#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

fn known() -> KnownSeries {
    KnownSeries::read(&root()).unwrap()
}

/// Every query of dashboards and rules, with a description of its place.
fn queries() -> Vec<(String, String, Place)> {
    let mut out = Vec::new();
    for (name, dashboard) in dashboards(&root()).unwrap() {
        for (panel, query) in panel_queries(&dashboard) {
            out.push((format!("{name} / {panel}"), query, Place::Panel));
        }
        for (annotation, query) in annotation_queries(&dashboard) {
            out.push((format!("{name} / {annotation}"), query, Place::Panel));
        }
        for (variable, query) in variable_queries(&dashboard) {
            out.push((format!("{name} / ${variable}"), query, Place::Rule));
        }
    }
    for rule in rules(&root()).unwrap() {
        let query = rule["expr"].as_str().unwrap().to_owned();
        let name = if rule["alert"].is_null() {
            &rule["record"]
        } else {
            &rule["alert"]
        };
        out.push((name.to_string(), query, Place::Rule));
    }
    out
}

#[test]
fn dashboards_and_rules_query_registered_metrics_with_their_labels() {
    let known = known();
    let found = queries().into_iter().flat_map(|(name, query, place)| {
        let mistakes = known.mistakes(&query, place).into_iter();
        mistakes.map(move |mistake| format!("{name}: {mistake}"))
    });
    assert_eq!(found.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn each_mistake_in_a_query_is_reported() {
    let known = known();
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
            r#"lockstep_gangs{job=~"$job", instance=~"$instance"}"#,
            "not narrowed by $cluster",
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
        (
            r#"lockstep_gangs{$scraped, state!="queued"}"#,
            r#"lockstep_gangs: no state is "queued""#,
        ),
        (
            r#"rate(lockstep_write_errors_total{$scraped, class=~"invalid|denied"}[$__rate_interval])"#,
            r#"lockstep_write_errors_total: no class is "denied""#,
        ),
    ] {
        let found = known.mistakes(&query.replace("$scraped", NARROWED), Place::Panel);
        assert!(
            found.len() == 1 && found[0].contains(mistake),
            "{query}: {found:?}"
        );
    }
    for right in [
        r#"rate(lockstep_write_errors_total{class=~"invalid|forbidden"}[5m])"#,
        r#"lockstep_workloads{phase=~"Pending|Run.+"}"#,
        r#"lockstep_waiting_gangs{reason="Any"}"#,
        "histogram_quantile(0.9, sum by (le) (rate(lockstep_queue_wait_seconds_bucket[5m])))",
    ] {
        assert_eq!(known.mistakes(right, Place::Rule), Vec::<String>::new());
    }
}

#[test]
fn every_registered_metric_is_in_a_panel_or_a_rule() {
    let (known, queries) = (known(), queries());
    let series = queries
        .iter()
        .flat_map(|(_, query, _)| query::series(query));
    let metrics = series.filter_map(|name| known.metrics.of_series(&name));
    let mut seen: BTreeSet<&str> = metrics.map(|m| m.name.as_str()).collect();
    seen.extend(SHOWN_ELSEWHERE.map(|(name, _)| name));
    let all = known.metrics.registered().map(|m| m.name.as_str());
    let unseen = all.filter(|name| !seen.contains(name));
    assert_eq!(unseen.collect::<Vec<_>>(), Vec::<&str>::new());
}

/// String literals of the sources in a folder.
fn literals(folder: &Path, out: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            literals(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let source = std::fs::read_to_string(path).unwrap();
            collect_literals(source.parse().unwrap(), out);
        }
    }
}

fn collect_literals(tokens: TokenStream, out: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect_literals(group.stream(), out),
            TokenTree::Literal(literal) => {
                if let Lit::Str(text) = Lit::new(literal) {
                    out.insert(text.value());
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

#[test]
fn the_reference_page_has_every_metric_that_the_sources_name() {
    let mut names = BTreeSet::new();
    for program in ["operator/manager/src", "operator/agent/src"] {
        literals(&root().join(program), &mut names);
    }
    names.retain(|name| {
        let plain = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        plain && PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    });
    assert!(names.contains("lockstep_gangs"), "names are found");
    let page = read("docs/reference/metrics.md");
    let listed = |name: &String| {
        let mut suffixes = ["", "_total", "_info"].iter();
        suffixes.any(|suffix| page.contains(&format!("| `{name}{suffix}` |")))
    };
    names.retain(|name| !listed(name) && !PROGRAMS.contains(&name.as_str()));
    assert_eq!(names, BTreeSet::new());
}

#[test]
fn tests_of_rules_feed_registered_series() {
    let known = known();
    let tests = read("tests/prometheus/rules_test.yaml");
    let inputs = tests.split("{series: '").skip(1);
    let inputs: Vec<&str> = inputs.filter_map(|rest| rest.split('\'').next()).collect();
    assert!(inputs.len() > 38, "{inputs:?}");
    for series in inputs {
        let mut found = known.mistakes(series, Place::Rule);
        // Samples of a counter are given as they are.
        found.retain(|m| !m.contains("under rate or increase"));
        assert_eq!(found, Vec::<String>::new(), "{series}");
    }
}

#[test]
fn every_alert_has_a_runbook_and_a_row_with_its_severity_in_the_docs() {
    let page = read("docs/observability.md");
    let index = read("docs/runbooks/README.md");
    let mut alerts = 0;
    for rule in rules(&root()).unwrap() {
        if let Some(recorded) = rule["record"].as_str() {
            assert!(page.contains(recorded), "{recorded}");
            continue;
        }
        alerts += 1;
        let name = rule["alert"].as_str().unwrap();
        let severity = rule["labels"]["severity"].as_str().unwrap();
        let row = format!("| [{name}](runbooks/{name}.md) | {severity} | ");
        assert!(page.contains(&row), "{row}");
        let annotations = &rule["annotations"];
        let url = annotations["runbook_url"].as_str().unwrap();
        assert!(url.ends_with(&format!("/docs/runbooks/{name}.md")), "{url}");
        // An on-call engineer may have only a terminal.
        let description = annotations["description"].as_str().unwrap();
        assert!(description.contains("kubectl "), "{name}: {description}");
        let runbook = read(&format!("docs/runbooks/{name}.md"));
        assert!(runbook.starts_with(&format!("# {name}\n")), "{name}");
        let headings = runbook.lines().filter_map(|l| l.strip_prefix("## "));
        assert_eq!(headings.collect::<Vec<_>>(), HEADINGS, "{name}");
        let says = |answer: &&&str| {
            let begins = format!("## Can it wait?\n\n**{answer}.** ");
            runbook.contains(&begins)
        };
        let answer = WAITS.iter().find(says).unwrap().to_lowercase();
        assert!(runbook.contains("\n**Recovery.** "), "{name}");
        let row = format!("| [{name}]({name}.md) | {severity} | {answer} | ");
        assert!(index.contains(&row), "{row}");
        let calls = runbook.split("## Whom to call\n").nth(1).unwrap();
        assert!(calls.contains("- Next runbook: [Lockstep"), "{name}");
    }
    let runbooks = std::fs::read_dir(root().join("docs/runbooks")).unwrap();
    assert_eq!(runbooks.count(), alerts + 1, "every runbook has an alert");
    assert_eq!(page.matches("](runbooks/").count(), alerts);
}

#[test]
fn the_slow_restart_alert_covers_every_action_that_keeps_pods_running() {
    let actions = FailureAction::ALL.into_iter().filter(|action| {
        !action.leaves_container() && !action.ends_workload() && !action.replaces_pods()
    });
    let names: Vec<&str> = actions.map(FailureAction::as_str).collect();
    let expected = format!("action=~\"{}\"", names.join("|"));
    let rules = rules(&root()).unwrap();
    let slow = rules.iter().find(|r| r["alert"] == "LockstepRecoverySlow");
    let expr = slow.unwrap()["expr"].as_str().unwrap();
    assert!(expr.contains(&expected), "{expected} is not in {expr}");
}

//! Alerts use existing series, name a command to run, and have one runbook each. A test with a
//! fault covers every rule. `make test-prometheus` runs the table's tests in Prometheus.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lockstep_api::names;
use lockstep_api::workload::FailureAction;
use xtask::alerts::{ALERTS, Alert, Case, RECORDINGS, RUNBOOKS, Recording, recorded, tests};
use xtask::query::{self, Place};

/// Headings of a runbook, in order.
const HEADINGS: [&str; 5] = ["Meaning", "Impact", "Look at", "Do", "Prevent"];

/// Alerts that fire at once, with the reason.
const AT_ONCE: [(&str, &str); 1] = [(
    "LockstepReconcilePanics",
    "a panic is over when it is counted; what is asked for looks back over 15 minutes",
)];
/// Allowed verbs after `kubectl`.
const VERBS: [&str; 4] = ["get", "describe", "logs", "lockstep"];

fn runbooks() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let pages = std::fs::read_dir(root.join(RUNBOOKS)).unwrap();
    pages
        .map(|page| {
            let path = page.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect()
}

fn mistakes(alerts: &[Alert], pages: &BTreeMap<String, String>) -> Vec<String> {
    let mut out = Vec::new();
    for alert in alerts {
        let found = query::mistakes(alert.expr, &recorded(), Place::Rule);
        out.extend(found.into_iter().map(|m| format!("{}: {m}", alert.name)));
        out.extend(mistakes_in_words(alert));
        match pages.get(alert.name) {
            None => out.push(format!("{}: no runbook", alert.name)),
            Some(page) => out.extend(mistakes_of_page(alert.name, page)),
        }
        for case in [&alert.fires, &alert.silent] {
            out.extend(mistakes_of_case(alert, case));
        }
    }
    let names: BTreeSet<&str> = alerts.iter().map(|a| a.name).collect();
    let strays = pages.keys().filter(|page| !names.contains(page.as_str()));
    out.extend(strays.map(|page| format!("{page}: a runbook without an alert")));
    out
}

fn mistakes_in_words(alert: &Alert) -> Vec<String> {
    let mut out = Vec::new();
    if alert.summary.is_empty() || alert.summary.len() > 100 {
        out.push(format!("{}: a summary is one line", alert.name));
    }
    // An on-call engineer may have only a terminal.
    let words = alert.description.split("kubectl ").skip(1);
    if !words.filter_map(first_verb).any(|v| VERBS.contains(&v)) {
        out.push(format!("{}: the description has no command", alert.name));
    }
    out.extend(strange_leases(alert.name, alert.description));
    let at_once = AT_ONCE.iter().any(|(name, _)| *name == alert.name);
    if !holds(alert.hold) && !at_once {
        out.push(format!("{}: for {:?} is no time", alert.name, alert.hold));
    }
    out
}

/// Leases in a text with a wrong name.
fn strange_leases(name: &str, text: &str) -> Vec<String> {
    let told = text.split(" lease ").skip(1);
    let told = told.filter_map(|rest| rest.split([' ', '`', '\n']).next());
    told.filter(|lease| lease.starts_with("lockstep-") && *lease != names::LEASE)
        .map(|lease| format!("{name}: there is no lease {lease}"))
        .collect()
}

/// The verb after `kubectl`, without options.
fn first_verb(command: &str) -> Option<&str> {
    let mut words = command.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "-n" => drop(words.next()),
            verb => return Some(verb.trim_end_matches(|c: char| !c.is_ascii_alphabetic())),
        }
    }
    None
}

/// True for a positive duration: a single bad scrape must not alert.
fn holds(time: &str) -> bool {
    let unit = time.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = time[..time.len() - unit.len()].parse::<u32>();
    ["s", "m", "h", "d"].contains(&unit) && number.is_ok_and(|n| n > 0)
}

fn mistakes_of_page(name: &str, page: &str) -> Vec<String> {
    let mut out = Vec::new();
    if page.lines().next() != Some(&format!("# {name}")) {
        out.push(format!("{name}: the runbook has another title"));
    }
    let headings: Vec<&str> = page.lines().filter_map(|l| l.strip_prefix("## ")).collect();
    if headings != HEADINGS {
        out.push(format!("{name}: the runbook has headings {headings:?}"));
    }
    if !page.contains("kubectl") {
        out.push(format!("{name}: the runbook has no command"));
    }
    out.extend(strange_leases(name, page));
    out
}

/// A test must feed series that the alert reads.
fn mistakes_of_case(alert: &Alert, case: &Case) -> Vec<String> {
    let of = |series: &str| series.split('{').next().unwrap_or_default().to_owned();
    let reads = case.series.iter().any(|(s, _)| alert.expr.contains(&of(s)));
    let mut out = Vec::new();
    if !reads {
        out.push(format!(
            "{}: a test feeds nothing that it reads",
            alert.name
        ));
    }
    for (series, _) in case.series {
        let found = query::mistakes(&format!("rate({series}[5m])"), &[], Place::Rule);
        let wrong = found.iter().filter(|m| !m.contains("counters, and"));
        out.extend(wrong.map(|m| format!("{}: {m}", alert.name)));
    }
    out
}

#[test]
fn alerts_query_existing_metrics_and_have_a_runbook_each() {
    assert_eq!(mistakes(&ALERTS, &runbooks()), Vec::<String>::new());
}

/// Alerts and recordings missing on the page, and rows of unknown alerts.
fn unlisted(page: &str) -> Vec<String> {
    let mut out = Vec::new();
    for alert in ALERTS {
        let (name, severity) = (alert.name, alert.severity.as_str());
        let row = format!("| [{name}](runbooks/{name}.md) | {severity} | ");
        if !page.contains(&row) {
            out.push(row);
        }
    }
    let listed = page.matches("](runbooks/").count();
    if listed != ALERTS.len() {
        out.push(format!("{listed} rows"));
    }
    let recordings = RECORDINGS.iter().map(|r| r.name);
    out.extend(
        recordings
            .filter(|name| !page.contains(name))
            .map(str::to_owned),
    );
    out
}

#[test]
fn the_page_for_people_lists_each_alert_with_its_severity_and_each_recording() {
    let page = include_str!("../../docs/observability.md");
    assert_eq!(unlisted(page), Vec::<String>::new());
    let name = ALERTS[0].name;
    let row = page.lines().find(|l| l.contains(&format!("| [{name}]")));
    let row = format!("{}\n", row.unwrap());
    let recording = RECORDINGS[0].name;
    for (spoilt, mistake) in [
        (page.replace(&row, ""), name),
        (page.replace(&row, &row.replace("critical", "info")), name),
        (page.replace(&row, &row.repeat(2)), "rows"),
        (page.replace(recording, "it"), recording),
    ] {
        let found = unlisted(&spoilt).concat();
        assert!(found.contains(mistake), "{mistake}: {found:?}");
    }
}

/// Faults of a recording: its query, or its name, which must be level:metric:operation.
fn mistakes_of_recording(rule: &Recording) -> Vec<String> {
    let mut out = query::mistakes(rule.expr, &[], Place::Rule);
    if rule.name.split(':').count() != 3 {
        out.push(format!("{} is no name of a recording", rule.name));
    }
    out
}

#[test]
fn recording_rules_query_existing_metrics_and_follow_the_naming_convention() {
    for rule in &RECORDINGS {
        assert_eq!(mistakes_of_recording(rule), Vec::<String>::new());
    }
    let short = Recording {
        name: "lockstep:goodput",
        ..RECORDINGS[0]
    };
    assert_eq!(
        mistakes_of_recording(&short),
        ["lockstep:goodput is no name of a recording"]
    );
    let astray = Recording {
        expr: "sum(lockstep_gone)",
        ..RECORDINGS[0]
    };
    let found = mistakes_of_recording(&astray);
    assert!(found[0].contains("no such metric"), "{found:?}");
}

fn found(alert: Alert, pages: &BTreeMap<String, String>) -> Vec<String> {
    let others = ALERTS.iter().filter(|a| a.name != ALERTS[0].name);
    let all: Vec<Alert> = others.copied().chain([alert]).collect();
    mistakes(&all, pages)
}

#[test]
fn every_rule_about_alerts_finds_its_mistake() {
    let (good, pages) = (ALERTS[0], runbooks());
    assert_eq!(found(good, &pages), Vec::<String>::new());
    let asks = |expr| Alert { expr, ..good };
    let feeds = |series| Alert {
        fires: Case { series, at: "1m" },
        ..good
    };
    let mute = Alert {
        summary: "",
        ..good
    };
    let idle = Alert {
        description: "It is bad.",
        ..good
    };
    // Names of a program and a dashboard are not commands.
    let vague = Alert {
        description: "Look at the dashboard Lockstep / Fleet, or use kubectl.",
        ..good
    };
    let astray = Alert {
        description: "Look with: kubectl -n lockstep-system get lease lockstep-manager -o yaml",
        ..good
    };
    let hasty = |hold| Alert { hold, ..good };
    let new = Alert {
        name: "LockstepNew",
        ..good
    };
    for (alert, mistake) in [
        (asks("absent(lockstep_biuld_info)"), "no such metric"),
        (
            asks("sum by (phase) (lockstep_gangs) > 1"),
            "grouped by phase",
        ),
        (
            asks(r#"lockstep_gangs{phase="x"} > 1"#),
            "has no label phase",
        ),
        (
            asks("lockstep_preemptions_total > 1"),
            "under rate or increase",
        ),
        (asks("sum("), "does not parse"),
        (mute, "a summary is one line"),
        (idle, "has no command"),
        (vague, "has no command"),
        (astray, "there is no lease lockstep-manager"),
        (hasty(""), "is no time"),
        (hasty("0m"), "is no time"),
        (hasty("soon"), "is no time"),
        (new, "LockstepNew: no runbook"),
        (
            feeds(&[("lockstep_gangs", "1x5")]),
            "feeds nothing that it reads",
        ),
        (
            feeds(&[(r#"lockstep_build_info{colour="red"}"#, "1x5")]),
            "has no label colour",
        ),
    ] {
        let found = found(alert, &pages);
        assert!(
            found.iter().any(|m| m.contains(mistake)),
            "{mistake}: {found:?}"
        );
    }
}

#[test]
fn every_rule_about_runbooks_finds_its_mistake() {
    let good = ALERTS[0];
    let with = |change: fn(&mut String)| {
        let mut pages = runbooks();
        change(pages.get_mut(good.name).unwrap());
        pages
    };
    let mut stray = runbooks();
    stray.insert("Gone".into(), String::new());
    for (pages, mistake) in [
        (stray, "Gone: a runbook without an alert"),
        (
            with(|page| *page = page.replace("## Do\n", "## Try\n")),
            "has headings",
        ),
        (
            with(|page| *page = page.replacen("# L", "# M", 1)),
            "another title",
        ),
        (
            with(|page| *page = page.replace("kubectl", "k")),
            "no command",
        ),
        (
            with(|page| page.push_str("`kubectl delete lease lockstep-manager`")),
            "there is no lease",
        ),
    ] {
        let found = found(good, &pages);
        assert!(
            found.iter().any(|m| m.contains(mistake)),
            "{mistake}: {found:?}"
        );
    }
}

#[test]
fn each_alert_has_one_test_in_which_it_fires_alone_and_one_in_which_nothing_does() {
    let tests = tests();
    let tests = tests["tests"].as_array().unwrap();
    assert_eq!(tests.len(), 2 * ALERTS.len());
    for (alert, pair) in ALERTS.iter().zip(tests.chunks(2)) {
        let firing = |test: &serde_json::Value| {
            let samples = test["promql_expr_test"][0]["exp_samples"]
                .as_array()
                .unwrap();
            samples
                .iter()
                .map(|s| s["labels"].to_string())
                .collect::<String>()
        };
        assert!(firing(&pair[0]).contains(alert.name), "{}", alert.name);
        assert_eq!(firing(&pair[1]), "", "{}", alert.name);
    }
}

#[test]
fn the_slow_restart_alert_covers_every_action_that_keeps_pods_running() {
    let slow = ALERTS.iter().find(|a| a.name == "LockstepRecoverySlow");
    let actions = FailureAction::ALL.into_iter().filter(|action| {
        !action.leaves_container() && !action.ends_workload() && !action.replaces_pods()
    });
    let names: Vec<&str> = actions.map(FailureAction::as_str).collect();
    let expected = format!("action=~\"{}\"", names.join("|"));
    let expr = slow.expect("the alert").expr;
    assert!(expr.contains(&expected), "{expected} is not in {expr}");
}

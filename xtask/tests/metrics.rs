//! The table of metrics matches the metrics that the programs register.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::Lit;
use xtask::metric::{Kind, Metric};
use xtask::metrics;

/// Prefixes of metric names. No other string literals have these prefixes.
const BEGINNINGS: [&str; 6] = [
    "lockstep_",
    "controller_runtime_",
    "workqueue_",
    "rest_client_",
    "process_",
    "leader_election_",
];
/// String literals that are not metrics: names of programs and crates.
const OTHERS: [&str; 2] = ["lockstep_manager", "lockstep_agent"];

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn literals(tokens: TokenStream, out: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => literals(group.stream(), out),
            TokenTree::Literal(literal) => {
                if let Lit::Str(text) = Lit::new(literal) {
                    out.push(text.value());
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Metric names in a source, without suffixes of the metric's kind.
fn names_in(source: &str) -> BTreeSet<String> {
    let mut names = Vec::new();
    literals(source.parse().unwrap(), &mut names);
    names.retain(|name| {
        let plain = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        plain && BEGINNINGS.iter().any(|b| name.starts_with(b)) && !OTHERS.contains(&name.as_str())
    });
    names.into_iter().collect()
}

/// Metric names in the sources of the programs.
fn registered() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for program in ["operator/manager/src", "operator/agent/src"] {
        sources(&root.join(program), &mut files);
    }
    let texts = files.iter().map(std::fs::read_to_string);
    texts.flat_map(|text| names_in(&text.unwrap())).collect()
}

/// Differences between the table and the registered metrics, and faults of the table.
fn mistakes(registered: &BTreeSet<String>, listed: &[Metric]) -> Vec<String> {
    let mut out = Vec::new();
    let (mut names, mut stems) = (BTreeSet::new(), BTreeSet::new());
    for metric in listed {
        let name = metric.name;
        let suffixes = ["_total", "_info"];
        let stem = suffixes.iter().find_map(|s| name.strip_suffix(s));
        let stem = stem.unwrap_or(name);
        if !registered.contains(stem) {
            out.push(format!("{name} is not registered"));
        }
        if !names.insert(name) {
            out.push(format!("{name} is listed twice"));
        }
        if name.ends_with("_total") != (metric.kind == Kind::Counter) {
            out.push(format!("{name}: counters and they alone end in _total"));
        }
        if metric.meaning.is_empty() {
            out.push(format!("{name} has no meaning"));
        }
        stems.insert(stem);
    }
    let rowless = registered.iter().filter(|n| !stems.contains(n.as_str()));
    out.extend(rowless.map(|name| format!("{name} has no row")));
    out
}

fn listed() -> Vec<Metric> {
    metrics::all().copied().collect()
}

#[test]
fn the_table_names_every_metric_that_is_registered_and_no_other() {
    assert_eq!(mistakes(&registered(), &listed()), Vec::<String>::new());
}

#[test]
fn a_name_is_found_behind_quotation_marks_of_any_sort() {
    for before in [
        "f('\"');",
        "f(\"\\\"\");",
        "f(r#\"\"\"#);",
        "f(b'\"', \"\\\\\");",
        "// \"",
        "/// \"\nconst A: u8 = 1;",
        "fn f<'a>(_: &'a str) {}",
        "m!(\"lockstep-agent\", \"lockstep_agent\", \"lockstep_moods 1\");",
    ] {
        let source = format!("{before}\nregister(\"lockstep_moods\", \"Moods\");");
        let found = Vec::from_iter(names_in(&source));
        assert_eq!(found, ["lockstep_moods"], "{before}");
    }
}

#[test]
fn what_the_table_has_wrong_is_said() {
    type Mistake = (fn(&mut BTreeSet<String>, &mut Vec<Metric>), &'static str);
    fn row<'a>(listed: &'a mut [Metric], name: &str) -> &'a mut Metric {
        listed.iter_mut().find(|m| m.name == name).unwrap()
    }
    let seeded: [Mistake; 7] = [
        (
            |registered, _| registered.extend(["lockstep_moods".to_owned()]),
            "lockstep_moods has no row",
        ),
        (
            |registered, _| registered.retain(|n| n != "lockstep_placements"),
            "lockstep_placements_total is not registered",
        ),
        (
            |_, listed| listed.retain(|m| m.name != "lockstep_gangs"),
            "lockstep_gangs has no row",
        ),
        (
            |_, listed| row(listed, "lockstep_placements_total").name = "lockstep_placements",
            "lockstep_placements: counters and they alone end in _total",
        ),
        (
            |_, listed| row(listed, "lockstep_placements_total").kind = Kind::Gauge,
            "lockstep_placements_total: counters and they alone end in _total",
        ),
        (
            |_, listed| row(listed, "lockstep_gangs").meaning = "",
            "lockstep_gangs has no meaning",
        ),
        (
            |_, listed| listed.extend_from_within(..1),
            "lockstep_workloads is listed twice",
        ),
    ];
    for (spoil, said) in seeded {
        let (mut registered, mut listed) = (registered(), listed());
        spoil(&mut registered, &mut listed);
        assert_eq!(mistakes(&registered, &listed), [said]);
    }
}

#[test]
fn no_series_belongs_to_two_metrics() {
    let series = metrics::of_series("lockstep_queue_wait_seconds_bucket").unwrap();
    assert_eq!(series.labels, ["priority_class", "how"]);
    assert!(metrics::of_series("lockstep_queue_wait_seconds").is_none());
}

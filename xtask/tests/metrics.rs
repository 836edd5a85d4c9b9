//! The table of metrics names what the programs register, and nothing else.

// `cfg(test)` always holds here; it tells clippy that helpers of tests may unwrap.
#![cfg(test)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use xtask::{metric, metrics};

/// What names of metrics begin with. A name is the only string literal that does.
const BEGINNINGS: [&str; 6] = [
    "lockstep_",
    "controller_runtime_",
    "workqueue_",
    "rest_client_",
    "process_",
    "leader_election_",
];
/// String literals that are no metrics: names of programs and crates.
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

/// Names in the sources, without what the kind of a metric adds to them.
fn registered() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for program in ["operator/manager/src", "operator/agent/src"] {
        sources(&root.join(program), &mut files);
    }
    let mut names = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for literal in text.split('"').skip(1).step_by(2) {
            let plain = literal.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            let begins = BEGINNINGS.iter().any(|b| literal.starts_with(b));
            if plain && begins && !OTHERS.contains(&literal) {
                names.insert(literal.to_owned());
            }
        }
    }
    names
}

#[test]
fn the_table_names_every_metric_that_is_registered_and_no_other() {
    let stem = |name: &'static str| {
        let suffixes = ["_total", "_info"];
        let short = suffixes.iter().find_map(|s| name.strip_suffix(s));
        short.unwrap_or(name).to_owned()
    };
    let listed: BTreeSet<String> = metrics::all().map(|m| stem(m.name)).collect();
    assert_eq!(registered(), listed);
    let names: BTreeSet<&str> = metrics::all().map(|m| m.name).collect();
    assert_eq!(names.len(), metrics::all().count(), "each once");
}

#[test]
fn counters_and_they_alone_end_in_total_and_no_series_belongs_to_two() {
    for metric in metrics::all() {
        let counts = metric.kind == metric::Kind::Counter;
        assert_eq!(metric.name.ends_with("_total"), counts, "{}", metric.name);
        assert!(!metric.meaning.is_empty(), "{}", metric.name);
    }
    let series = metrics::of_series("lockstep_queue_wait_seconds_bucket").unwrap();
    assert_eq!(series.labels, ["priority_class", "how"]);
    assert!(metrics::of_series("lockstep_queue_wait_seconds").is_none());
}

//! The sidebar of the documentation site, and how many clicks lead to an answer.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use xtask::site::{SUMMARY, clicks, pages, sidebar};

/// Parts of the sidebar, in order.
const PARTS: [&str; 7] = [
    "Start",
    "Run training",
    "Move a job",
    "Operate",
    "On call",
    "Reference",
    "Understand",
];
/// Questions of users with the page that answers them, and the clicks to it.
const QUESTIONS: &str = "tests/suite/questions.tsv";
/// Most clicks from the start page to an answer.
const MOST: usize = 3;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn every_page_is_in_the_sidebar_once() {
    let sidebar = sidebar(root()).unwrap();
    let mut parts: Vec<&str> = sidebar.iter().map(|p| p.part.as_str()).collect();
    parts.dedup();
    assert_eq!(parts, PARTS);
    let listed: BTreeSet<PathBuf> = sidebar.iter().map(|p| p.path.clone()).collect();
    assert_eq!(listed.len(), sidebar.len(), "a page is listed twice");
    let pages: BTreeSet<PathBuf> = markdown(&root().join("docs"))
        .into_iter()
        .filter(|path| path != Path::new(SUMMARY))
        .collect();
    let of_docs = listed.into_iter().filter(|p| p.starts_with("docs"));
    assert_eq!(of_docs.collect::<BTreeSet<_>>(), pages);
}

/// Pages in a folder and its folders, by their path from the root.
fn markdown(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            out.extend(markdown(&path));
        } else if path.extension().is_some_and(|e| e == "md") {
            out.push(path.strip_prefix(root()).unwrap().to_owned());
        }
    }
    out
}

#[test]
fn pages_of_the_site_link_files_of_the_repository_by_its_address() {
    let pages = pages(root(), "v0.1.0").unwrap();
    for start in [
        "index.md",
        "CHANGELOG.md",
        "runbooks/index.md",
        "SUMMARY.md",
    ] {
        assert!(pages.contains_key(Path::new(start)), "{start}");
    }
    let text = |page: &str| String::from_utf8(pages[Path::new(page)].clone()).unwrap();
    let sample = "/blob/v0.1.0/samples/06-without-accelerators.yaml)";
    assert!(text("quickstart.md").contains(sample));
    assert!(text("SUMMARY.md").contains("](index.md)"));
    assert!(text("index.md").contains("](install.md#from-a-release)"));
}

#[test]
fn answers_are_at_most_three_clicks_from_the_start_page() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(QUESTIONS);
    let recorded = std::fs::read_to_string(&path).unwrap();
    let clicks = clicks(root()).unwrap();
    let mut lines = recorded.lines();
    let mut counted = format!("{}\n", lines.next().unwrap());
    let mut of_peers = BTreeSet::new();
    for line in lines {
        let [question, source, place, _] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("four columns: {line}");
        };
        let n = clicks.of(root(), place).unwrap();
        let n = n.unwrap_or_else(|| panic!("{question}: no {place}"));
        assert!(n <= MOST, "{question}: {n} clicks to {place}");
        let _ = writeln!(counted, "{question}\t{source}\t{place}\t{n}");
        if source.contains('#') {
            of_peers.insert(source);
        }
    }
    assert!(of_peers.len() >= 20, "{of_peers:?}");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, counted).unwrap();
    } else {
        assert_eq!(recorded, counted, "UPDATE_GOLDEN=1 writes {QUESTIONS}");
    }
}

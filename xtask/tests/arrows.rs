//! The dependencies between the crates are those that the architecture allows.
//!
//! Direct arrows come from `cargo metadata`. What a crate must not reach at all comes from `cargo tree` of that crate
//! alone: metadata unifies the features of the whole workspace, so it sees dependencies that the crate does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Crates of the product and what they may depend on. Crates that are not named here (tests, xtask) may depend on
/// anything.
const ALLOWED: &[(&str, &[&str])] = &[
    ("lockstep-api", &[]),
    ("lockstep-engine", &[]),
    ("lockstep-model", &["lockstep-api", "lockstep-engine"]),
    ("lockstep-lifecycle", &["lockstep-api"]),
    ("lockstep-manager", &["lockstep-api", "lockstep-engine", "lockstep-lifecycle", "lockstep-model"]),
    ("lockstep-agent", &["lockstep-api", "lockstep-lifecycle"]),
    // What is a gang of a manifest is said in one place.
    ("lockstep-cli", &["lockstep-api", "lockstep-engine", "lockstep-lifecycle", "lockstep-model"]),
];

/// Crates that must stay free of these, directly and through others.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("lockstep-engine", &["chrono", "jiff", "k8s-openapi", "kube", "tokio"]),
    ("lockstep-api", &["kube-client", "tokio"]),
    ("lockstep-model", &["kube-client", "tokio"]),
    ("lockstep-lifecycle", &["kube-client", "tokio"]),
];

fn cargo(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO")).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(out.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Direct dependencies of each crate of the workspace on others of it, development dependencies left out.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version=1"])).unwrap();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().unwrap();
    packages
        .iter()
        .map(|p| {
            let ours = p["dependencies"].as_array().unwrap().iter().filter(|d| d["path"].is_string());
            (text(&p["name"]), ours.filter(|d| d["kind"] != "dev").map(|d| text(&d["name"])).collect())
        })
        .collect()
}

#[test]
fn crates_depend_on_each_other_only_along_the_allowed_arrows() {
    let arrows = arrows();
    let forbidden: Vec<String> = ALLOWED
        .iter()
        .flat_map(|(from, allowed)| {
            let to = arrows.get(*from).cloned().unwrap_or_default();
            to.into_iter().filter(|t| !allowed.contains(&t.as_str())).map(move |t| format!("{from} -> {t}"))
        })
        .collect();
    assert!(forbidden.is_empty(), "not allowed: {forbidden:?}");
    let product = cargo(&["metadata", "--no-deps", "--format-version=1"]);
    let product: Value = serde_json::from_str(&product).unwrap();
    for package in product["packages"].as_array().unwrap() {
        let (name, path) = (package["name"].as_str().unwrap(), package["manifest_path"].as_str().unwrap());
        let known = ALLOWED.iter().any(|(n, _)| *n == name);
        assert!(known || !path.contains("/operator/"), "{name} is part of the product and has no entry here");
    }
}

#[test]
fn pure_crates_reach_no_client_and_no_async_runtime() {
    for (name, forbidden) in FORBIDDEN {
        let tree = cargo(&["tree", "-p", name, "-e", "normal", "--prefix", "none", "--format", "{p}"]);
        let reached: BTreeSet<&str> = tree.lines().filter_map(|l| l.split(' ').next()).collect();
        let bad: Vec<&&str> = forbidden.iter().filter(|f| reached.contains(**f)).collect();
        assert!(bad.is_empty(), "{name} reaches {bad:?}");
    }
}

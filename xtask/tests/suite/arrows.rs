//! The dependencies between the crates are those that the architecture allows.
//!
//! Direct dependencies come from `cargo metadata`. Transitive ones come from `cargo tree` of a
//! single crate, because metadata unifies the features of the whole workspace and includes
//! dependencies that the crate does not have. A test with a fault covers each rule.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Crates of the product and their allowed dependencies. Other crates (tests, xtask) may depend on
/// anything.
const ALLOWED: &[(&str, &[&str])] = &[
    ("lockstep-api", &[]),
    ("lockstep-engine", &[]),
    ("lockstep-model", &["lockstep-api", "lockstep-engine"]),
    (
        "lockstep-scheduler",
        &["lockstep-api", "lockstep-engine", "lockstep-model"],
    ),
    (
        "lockstep-lifecycle",
        &["lockstep-api", "lockstep-supervisor-protocol"],
    ),
    ("lockstep-node", &["lockstep-api"]),
    (
        "lockstep-manager",
        &[
            "lockstep-api",
            "lockstep-engine",
            "lockstep-lifecycle",
            "lockstep-model",
            "lockstep-common",
            "lockstep-scheduler",
            "lockstep-version",
        ],
    ),
    (
        "lockstep-agent",
        &[
            "lockstep-api",
            "lockstep-common",
            "lockstep-node",
            "lockstep-version",
            "lockstep-supervisor-protocol",
        ],
    ),
    ("lockstep-common", &[]),
    ("lockstep-version", &[]),
    ("lockstep-supervisor-protocol", &[]),
    (
        "lockstep-run",
        &["lockstep-version", "lockstep-supervisor-protocol"],
    ),
    ("lockstep-convert", &["lockstep-api", "lockstep-lifecycle"]),
    (
        "lockstep-cli",
        &[
            "lockstep-api",
            "lockstep-convert",
            "lockstep-engine",
            "lockstep-lifecycle",
            "lockstep-model",
            "lockstep-scheduler",
            "lockstep-version",
        ],
    ),
];

/// Crates and their forbidden dependencies, direct or transitive.
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "lockstep-engine",
        &["chrono", "jiff", "k8s-openapi", "kube", "tokio"],
    ),
    ("lockstep-api", &["kube-client", "tokio"]),
    ("lockstep-model", &["kube-client", "tokio"]),
    ("lockstep-scheduler", &["kube-client", "tokio"]),
    ("lockstep-lifecycle", &["kube-client", "tokio"]),
    ("lockstep-convert", &["kube-client", "tokio"]),
    ("lockstep-node", &["kube-client", "tokio"]),
    ("lockstep-supervisor-protocol", &["serde", "tokio"]),
    ("lockstep-run", &["clap", "serde", "tokio"]),
];

pub fn cargo(args: &[&str]) -> Result<String> {
    let out = Command::new(env!("CARGO"))
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()?;
    ensure!(
        out.status.success(),
        "cargo {args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8(out.stdout)?)
}

/// Programs that connect to an API server.
const CLIENTS: &[&str] = &["lockstep-manager", "lockstep-agent", "lockstep-cli"];

struct Package {
    name: String,
    manifest: String,
    /// Direct dependencies within the workspace, without development dependencies.
    needs: BTreeSet<String>,
}

fn packages() -> Result<Vec<Package>> {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version=1"])?)?;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let package = |p: &Value| Package {
        name: text(&p["name"]),
        manifest: text(&p["manifest_path"]),
        needs: p["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|d| d["path"].is_string() && d["kind"] != "dev")
            .map(|d| text(&d["name"]))
            .collect(),
    };
    Ok(metadata["packages"]
        .as_array()
        .context("packages")?
        .iter()
        .map(package)
        .collect())
}

fn mistake(package: &Package) -> Option<String> {
    let name = &package.name;
    let Some((_, allowed)) = ALLOWED.iter().find(|(n, _)| n == name) else {
        let product = package.manifest.contains("/operator/");
        return product.then(|| format!("{name} is part of the product and has no entry here"));
    };
    let mut wrong = package.needs.iter();
    let wrong = wrong.find(|n| !allowed.contains(&n.as_str()))?;
    Some(format!("{name} must not depend on {wrong}"))
}

#[test]
fn crates_depend_on_each_other_only_along_the_allowed_arrows() -> Result<()> {
    let found: Vec<String> = packages()?.iter().filter_map(mistake).collect();
    ensure!(found.is_empty(), "{found:?}");
    Ok(())
}

#[test]
fn disallowed_dependencies_and_product_crates_without_an_entry_are_reported() {
    let package = |name: &str, folder: &str, needs: &[&str]| Package {
        name: name.to_owned(),
        manifest: format!("/x/{folder}/Cargo.toml"),
        needs: needs.iter().map(|n| (*n).to_owned()).collect(),
    };
    let upwards = package("lockstep-model", "operator/model", &["lockstep-manager"]);
    assert_eq!(
        mistake(&upwards).as_deref(),
        Some("lockstep-model must not depend on lockstep-manager")
    );
    let new = package("lockstep-new", "operator/new", &[]);
    assert_eq!(
        mistake(&new).as_deref(),
        Some("lockstep-new is part of the product and has no entry here")
    );
    let of_tests = package("lockstep-new", "tests/new", &["lockstep-manager"]);
    assert_eq!(mistake(&of_tests), None);
}

/// Forbidden crates in a tree, as `cargo tree` prints it without prefix.
fn reached<'a>(tree: &str, forbidden: &[&'a str]) -> Vec<&'a str> {
    let tree: BTreeSet<&str> = tree.lines().filter_map(|l| l.split(' ').next()).collect();
    let all = forbidden.iter().copied();
    all.filter(|f| tree.contains(f)).collect()
}

#[test]
fn pure_crates_reach_no_client_and_no_async_runtime() -> Result<()> {
    for (name, forbidden) in FORBIDDEN {
        let tree = cargo(&[
            "tree", "-p", name, "-e", "normal", "--prefix", "none", "--format", "{p}",
        ])?;
        ensure!(tree.starts_with(name), "{tree}");
        let bad = reached(&tree, forbidden);
        ensure!(bad.is_empty(), "{name} reaches {bad:?}");
    }
    Ok(())
}

#[test]
fn a_client_far_down_in_a_tree_is_noticed() {
    let tree = "lockstep-model v0.1.0 (/x)\nkube-core v4.0.0\nkube-client v4.0.0\nsyn v2.0.0\n";
    assert_eq!(reached(tree, &["kube-client", "tokio"]), ["kube-client"]);
    assert_eq!(reached(tree, &["kube", "tokio"]), [""; 0]);
}

/// Proxy features that the client in a tree lacks.
fn lacks(tree: &str) -> Vec<&'static str> {
    let kube = tree.lines().find(|l| l.starts_with("kube v"));
    let features = kube.and_then(|l| l.split(' ').nth(2)).unwrap_or_default();
    let has = |wanted: &&str| features.split(',').any(|f| f == *wanted);
    ["http-proxy", "socks5"]
        .into_iter()
        .filter(|w| !has(w))
        .collect()
}

/// Each client separately, as in images: a build of the workspace unifies the features of all.
#[test]
fn every_client_can_reach_an_api_server_behind_a_proxy() -> Result<()> {
    for name in CLIENTS {
        let tree = cargo(&[
            "tree", "-p", name, "-e", "normal", "--prefix", "none", "--format", "{p} {f}",
        ])?;
        let lacks = lacks(&tree);
        ensure!(lacks.is_empty(), "{name} lacks {lacks:?}");
    }
    Ok(())
}

#[test]
fn a_client_without_a_proxy_or_no_client_at_all_is_noticed() {
    let tree = |features| format!("lockstep-cli v0.1.0 (/x) \nkube v4.0.0 {features}\n");
    assert_eq!(lacks(&tree("client,http-proxy,socks5")), [""; 0]);
    assert_eq!(lacks(&tree("client,http-proxy")), ["socks5"]);
    assert_eq!(lacks(&tree("client")), ["http-proxy", "socks5"]);
    let none = "lockstep-cli v0.1.0 (/x) \nkube-core v4.0.0 http-proxy,socks5\n";
    assert_eq!(lacks(none), ["http-proxy", "socks5"]);
}

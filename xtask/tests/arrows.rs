//! The dependencies between the crates are those that the architecture allows.
//!
//! Direct arrows come from `cargo metadata`. What a crate must not reach at all comes from `cargo
//! tree` of that crate alone: metadata unifies the features of the whole workspace, so it sees
//! dependencies that the crate does not have.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Crates of the product and what they may depend on. Crates that are not named here (tests, xtask)
/// may depend on anything.
const ALLOWED: &[(&str, &[&str])] = &[
    ("lockstep-api", &[]),
    ("lockstep-engine", &[]),
    ("lockstep-model", &["lockstep-api", "lockstep-engine"]),
    (
        "lockstep-scheduler",
        &["lockstep-api", "lockstep-engine", "lockstep-model"],
    ),
    ("lockstep-lifecycle", &["lockstep-api", "lockstep-wire"]),
    (
        "lockstep-manager",
        &[
            "lockstep-api",
            "lockstep-engine",
            "lockstep-lifecycle",
            "lockstep-model",
            "lockstep-process",
            "lockstep-scheduler",
            "lockstep-version",
        ],
    ),
    (
        "lockstep-agent",
        &[
            "lockstep-api",
            "lockstep-lifecycle",
            "lockstep-process",
            "lockstep-version",
            "lockstep-wire",
        ],
    ),
    ("lockstep-process", &[]),
    ("lockstep-version", &[]),
    ("lockstep-wire", &[]),
    ("lockstep-run", &["lockstep-version", "lockstep-wire"]),
    (
        "lockstep-cli",
        &[
            "lockstep-api",
            "lockstep-engine",
            "lockstep-model",
            "lockstep-scheduler",
            "lockstep-version",
        ],
    ),
];

/// Crates that must stay free of these, directly and through others.
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "lockstep-engine",
        &["chrono", "jiff", "k8s-openapi", "kube", "tokio"],
    ),
    ("lockstep-api", &["kube-client", "tokio"]),
    ("lockstep-model", &["kube-client", "tokio"]),
    ("lockstep-scheduler", &["kube-client", "tokio"]),
    ("lockstep-lifecycle", &["kube-client", "tokio"]),
    ("lockstep-wire", &["serde", "tokio"]),
    ("lockstep-run", &["clap", "serde", "tokio"]),
];

fn cargo(args: &[&str]) -> Result<String> {
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

/// Programs that talk to an API server.
const CLIENTS: &[&str] = &["lockstep-manager", "lockstep-agent", "lockstep-cli"];

/// A crate of the workspace.
struct Package {
    name: String,
    manifest: String,
    /// Direct dependencies on others of the workspace, development dependencies left out.
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

#[test]
fn crates_depend_on_each_other_only_along_the_allowed_arrows() -> Result<()> {
    for package in packages()? {
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package.name) else {
            let product = package.manifest.contains("/operator/");
            ensure!(
                !product,
                "{} is part of the product and has no entry here",
                package.name
            );
            continue;
        };
        let wrong: Vec<_> = package
            .needs
            .iter()
            .filter(|n| !allowed.contains(&n.as_str()))
            .collect();
        ensure!(
            wrong.is_empty(),
            "{} must not depend on {wrong:?}",
            package.name
        );
    }
    Ok(())
}

#[test]
fn pure_crates_reach_no_client_and_no_async_runtime() -> Result<()> {
    for (name, forbidden) in FORBIDDEN {
        let tree = cargo(&[
            "tree", "-p", name, "-e", "normal", "--prefix", "none", "--format", "{p}",
        ])?;
        let reached: BTreeSet<&str> = tree.lines().filter_map(|l| l.split(' ').next()).collect();
        let bad: Vec<&&str> = forbidden.iter().filter(|f| reached.contains(**f)).collect();
        ensure!(bad.is_empty(), "{name} reaches {bad:?}");
    }
    Ok(())
}

/// Each alone, as images have it: a build of the workspace has the features of all.
#[test]
fn every_client_can_reach_an_api_server_behind_a_proxy() -> Result<()> {
    for name in CLIENTS {
        let tree = cargo(&[
            "tree", "-p", name, "-e", "normal", "--prefix", "none", "--format", "{p} {f}",
        ])?;
        let kube = tree.lines().find(|l| l.starts_with("kube v"));
        let features = kube.and_then(|l| l.split(' ').nth(2)).context("kube")?;
        for wanted in ["http-proxy", "socks5"] {
            ensure!(
                features.split(',').any(|f| f == wanted),
                "{name} lacks {wanted}: {features}"
            );
        }
    }
    Ok(())
}

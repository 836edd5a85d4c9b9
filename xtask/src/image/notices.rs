//! Licences and notices of all crates linked into a program.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Target;

/// Prefixes of licence files in crates.
const TERMS: [&str; 5] = ["COPYING", "COPYRIGHT", "LICENCE", "LICENSE", "NOTICE"];

/// Components of every program that are not crates.
const TOOLCHAIN: &str = "musl: MIT\nstandard library of Rust: MIT OR Apache-2.0\n";

/// Cargo's metadata of the workspace for a target.
#[derive(Clone, Debug)]
pub struct Dependencies(Value);

impl Dependencies {
    /// Runs `cargo metadata`, without a build.
    pub fn of(root: &Path, target: Target) -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .current_dir(root)
            .args(["metadata", "--format-version=1", "--locked"])
            .args(["--filter-platform", target.triple()]);
        let out = command.output().context("start cargo")?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "cargo metadata failed: {said}");
        let metadata = serde_json::from_slice(&out.stdout).context("cargo metadata")?;
        Ok(Self(metadata))
    }

    /// Third-party crates linked into a package's program.
    fn linked(&self, package: &str) -> Result<BTreeSet<&str>> {
        let nodes = self.0["resolve"]["nodes"].as_array();
        let nodes = nodes.context("a resolved graph")?.iter();
        let nodes: BTreeMap<&str, &Value> = nodes.map(|n| (text(&n["id"]), n)).collect();
        let ours = self.packages().find(|(_, p)| p["name"] == package);
        let (start, _) = ours.with_context(|| format!("no package {package}"))?;
        let mut seen = BTreeSet::from([start]);
        let mut open = vec![start];
        while let Some(id) = open.pop() {
            let node = nodes.get(id).with_context(|| format!("no node {id}"))?;
            let linked = items(&node["deps"]).filter(|d| {
                // Kind null is a normal dependency; the other kinds are for builds and tests.
                items(&d["dep_kinds"]).any(|k| k["kind"].is_null())
            });
            for id in linked.map(|d| text(&d["pkg"])) {
                if seen.insert(id) {
                    open.push(id);
                }
            }
        }
        let foreign = self.packages().filter(|(_, p)| !p["source"].is_null());
        let foreign: BTreeSet<&str> = foreign.map(|(id, _)| id).collect();
        Ok(seen.intersection(&foreign).copied().collect())
    }

    fn packages(&self) -> impl Iterator<Item = (&str, &Value)> {
        items(&self.0["packages"]).map(|p| (text(&p["id"]), p))
    }

    /// Notices of a package's program: the linked crates with their licences, then each text once.
    pub fn notices(&self, package: &str) -> Result<String> {
        let linked = self.linked(package)?;
        let mut crates = BTreeSet::new();
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (_, package) in self.packages().filter(|(id, _)| linked.contains(id)) {
            let name = format!("{} {}", text(&package["name"]), text(&package["version"]));
            let licence = package["license"].as_str().unwrap_or("see its text");
            crates.insert(format!("{name}: {licence}"));
            let manifest = Path::new(text(&package["manifest_path"]));
            for terms in terms(manifest.parent().context("a folder")?)? {
                texts.entry(terms).or_default().insert(name.clone());
            }
        }
        let mut out = format!("{package} contains the work of others:\n\n{TOOLCHAIN}");
        for line in crates {
            let _ = writeln!(out, "{line}");
        }
        let mut texts: Vec<(BTreeSet<String>, String)> =
            texts.into_iter().map(|(t, of)| (of, t)).collect();
        texts.sort();
        for (of, terms) in texts {
            let of: Vec<String> = of.into_iter().collect();
            let _ = write!(out, "\n--- {}\n\n{}\n", of.join(", "), terms.trim_end());
        }
        Ok(out)
    }
}

/// Licence texts of a crate.
fn terms(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths: Vec<PathBuf> = entries
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    paths.sort();
    let is_terms = |path: &PathBuf| {
        let name = path.file_name().map(|n| n.to_string_lossy().to_uppercase());
        path.is_file() && name.is_some_and(|n| TERMS.iter().any(|t| n.starts_with(t)))
    };
    let texts = paths.into_iter().filter(is_terms);
    texts
        .map(|path| {
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            Ok(String::from_utf8_lossy(&bytes).replace("\r\n", "\n"))
        })
        .collect()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_linked_is_named_and_each_text_is_there_once() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = |name: &str, terms: &str| {
            let folder = folder.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("License-MIT"), terms).unwrap();
            folder.join("Cargo.toml").display().to_string()
        };
        let package = |name: &str, terms: &str, source: Option<&str>| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": source,
                "manifest_path": manifest(name, terms)})
        };
        let needs = |of: &[(&str, Option<&str>)]| {
            let deps = of
                .iter()
                .map(|(pkg, kind)| json!({"pkg": pkg, "dep_kinds": [{"kind": kind}]}));
            deps.collect::<Vec<_>>()
        };
        let registry = Some("registry");
        let metadata = json!({
            "packages": [package("own", "ours", None), package("part", "ours", None), package("a", "same\r\n", registry),
                package("b", "same\n", registry), package("tool", "other", registry)],
            "resolve": {"nodes": [{"id": "own", "deps": needs(&[("part", None), ("tool", Some("build"))])},
                {"id": "part", "deps": needs(&[("a", None), ("b", None)])}, {"id": "a", "deps": []},
                {"id": "b", "deps": needs(&[("a", None)])}, {"id": "tool", "deps": []}]},
        });
        let notices = Dependencies(metadata).notices("own").unwrap();
        assert_eq!(
            notices,
            "own contains the work of others:\n\nmusl: MIT\nstandard library of Rust: MIT OR Apache-2.0\na 1.0.0: MIT\nb 1.0.0: MIT\n\n--- a 1.0.0, b 1.0.0\n\nsame\n"
        );
    }

    #[test]
    fn every_program_that_is_handed_out_has_notices_and_no_crate_is_without_a_licence() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let dependencies = Dependencies::of(root, Target::here()).unwrap();
        for name in crate::image::names().chain(["lockstep-cli"]) {
            let notices = dependencies.notices(name).unwrap();
            assert!(notices.contains("\n--- "), "{name}");
            assert!(!notices.contains("see its text"), "{name}");
        }
    }
}

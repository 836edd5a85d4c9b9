//! Properties of the generated Helm chart beyond those that Helm itself checks in end-to-end tests.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use xtask::bundle::{Images, PREFIX, TAG};
use xtask::chart::chart;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn below(folder: &Path, out: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            below(&path, out);
        } else {
            out.insert(path);
        }
    }
}

#[test]
fn the_chart_contains_only_generated_files() {
    let folder = root().join("charts/lockstep");
    let files = chart(root(), &Images::tagged(PREFIX, TAG)).unwrap();
    let expected: BTreeSet<PathBuf> = files.iter().map(|(path, _)| folder.join(path)).collect();
    assert_eq!(expected.len(), files.len(), "two files of one name");
    let mut found = BTreeSet::new();
    below(&folder, &mut found);
    assert_eq!(found, expected);
}

#[test]
fn images_by_digest_are_defaults_of_the_values() {
    let digest = format!("sha256:{}", "0a".repeat(32));
    let named = |program: &str| format!("registry.example/l/lockstep-{program}@{digest}");
    let images = Images {
        manager: named("manager"),
        agent: named("agent"),
        supervisor: named("run"),
        architectures: BTreeSet::new(),
    };
    let files = chart(root(), &images).unwrap();
    let values = files.iter().find(|(path, _)| path.ends_with("values.yaml"));
    let values: Value = serde_saphyr::from_str(&values.unwrap().1).unwrap();
    let images = &values["images"];
    assert_eq!(images["prefix"], "registry.example/l/");
    assert_eq!(images["tag"], TAG);
    for program in ["manager", "agent", "run"] {
        assert_eq!(images["digests"][program], digest, "{program}");
    }
}

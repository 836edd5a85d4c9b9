//! Properties of the Helm chart beyond those that Helm itself checks in end-to-end tests.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use xtask::chart::{generated, path_of_copy};
use xtask::read_folder;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn yaml(path: &str) -> Value {
    let text = std::fs::read_to_string(root().join(path)).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

#[test]
fn the_folder_of_copies_contains_no_other_file() {
    let files = generated(root()).unwrap().into_iter().map(|(path, _)| path);
    let mut expected: BTreeSet<PathBuf> =
        files.filter(|p| p.starts_with(path_of_copy(""))).collect();
    for crd in lockstep_api::crds::all() {
        let name = crd.metadata.name.unwrap();
        expected.insert(path_of_copy(&format!("crds/{name}.yaml")));
    }
    let found = read_folder(&root().join(path_of_copy(""))).unwrap();
    let found = found.iter().map(|(path, _)| path_of_copy("").join(path));
    assert_eq!(found.collect::<BTreeSet<_>>(), expected);
}

#[test]
fn the_chart_has_the_version_and_the_kinds_of_the_programs() {
    let chart = yaml("charts/lockstep/Chart.yaml");
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], env!("CARGO_PKG_VERSION"));
    }
    let kinds = chart["annotations"]["artifacthub.io/crds"].as_str();
    let kinds: Vec<Value> = serde_saphyr::from_str(kinds.unwrap()).unwrap();
    let of = |field: &'static str| kinds.iter().map(move |kind| kind[field].as_str().unwrap());
    let crds = lockstep_api::crds::all();
    let expected = crds.iter().map(|crd| crd.metadata.name.as_deref().unwrap());
    assert!(of("name").eq(expected));
    let expected = crds.iter().map(|crd| &*crd.spec.versions[0].name);
    assert!(of("version").eq(expected));
}

/// Paths and contents of values that are no sections.
fn leaves<'a>(value: &'a Value, path: &str, out: &mut Vec<(String, &'a Value)>) {
    match value.as_object().filter(|fields| !fields.is_empty()) {
        Some(fields) => {
            for (key, value) in fields {
                leaves(value, &format!("{path}/{key}"), out);
            }
        }
        None => out.push((path.to_owned(), value)),
    }
}

/// `tests/helm/same.sh` and an end-to-end test render the chart with these values.
#[test]
fn the_values_for_tests_set_each_value_to_something_else_than_its_default() {
    let defaults = yaml("charts/lockstep/values.yaml");
    let values = yaml("tests/helm/values.yaml");
    let mut all = Vec::new();
    leaves(&defaults, "", &mut all);
    // A structured value counts as one.
    let parts = ["resources", "ecurityContext", "Probe", "updateStrategy"];
    // Without them, other values have no effect.
    let same = [
        "/agents/enabled",
        "/crds/enabled",
        "/monitoring/dashboards/enabled",
    ];
    for (path, default) in all {
        let part = parts.iter().find_map(|p| Some(path.find(p)? + p.len()));
        let path = &path[..part.unwrap_or(path.len())];
        let found = values.pointer(path);
        assert!(found.is_some(), "{path} is not set");
        let is_default = found == Some(default);
        assert_eq!(is_default, same.contains(&path), "{path}");
    }
}

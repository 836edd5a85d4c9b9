//! Rules for the structure of the sources.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use xtask::structure::{
    Crate, Measures, cycles, duplicate_types, load, long_function_names, measure, module_cycles,
};

use crate::arrows::cargo;

fn crates() -> Vec<Crate> {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).expect("the sources are readable")
}

#[test]
fn no_files_of_a_crate_need_each_other_in_a_circle() {
    let crates = crates();
    assert!(crates.len() > 8, "the crates are found");
    let circles: Vec<_> = crates.iter().flat_map(cycles).collect();
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn no_modules_of_a_crate_need_each_other_in_a_circle() {
    let circles: Vec<_> = crates().iter().flat_map(module_cycles).collect();
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn a_public_type_name_exists_once() {
    let duplicates = duplicate_types(&crates());
    assert!(duplicates.is_empty(), "{duplicates:#?}");
}

#[test]
fn no_function_name_is_longer_than_80_characters() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for folder in ["api", "operator", "tests", "xtask"] {
        let long = long_function_names(&root.join(folder), 80).expect("the sources are readable");
        assert!(long.is_empty(), "{long:#?}");
    }
}

#[test]
fn no_stage_that_changes_the_ledger_needs_another_stage() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let stages = std::fs::read_dir(root.join("operator/lifecycle/src/record")).expect("a folder");
    let mut seen = 0;
    for stage in stages {
        let path = stage.expect("an entry").path();
        if path.file_name().is_none_or(|name| name == "mod.rs") || path.is_dir() {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("it is text");
        for other in ["super::", "record::"] {
            let needs = text.contains(other);
            assert!(!needs, "{} needs {other}", path.display());
        }
        seen += 1;
    }
    assert!(seen > 8, "the stages are found");
}

#[test]
fn no_file_of_the_product_is_longer_than_500_lines_and_no_function_than_90() {
    let mut all = Measures::default();
    for krate in crates() {
        all.add(&measure(&krate));
    }
    let (lines, file) = &all.longest_file;
    assert!(*lines <= 500, "{file} has {lines} lines");
    let longest = all.longest_function();
    assert!(
        longest.lines <= 90,
        "{} has {} lines",
        longest.name,
        longest.lines
    );
}

/// A source file and the modules that it declares in files of their own.
fn modules(file: &Path, folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let names = text.lines().filter_map(|line| {
        let name = line.trim().trim_start_matches("pub ");
        name.strip_prefix("mod ")?.strip_suffix(';')
    });
    let mut all = Vec::new();
    for name in names {
        let inner = folder.join(name);
        let files = [inner.with_extension("rs"), inner.join("mod.rs")];
        let file = files.iter().find(|f| f.is_file());
        all.extend(file.into_iter().flat_map(|file| modules(file, &inner)));
    }
    all.push(text);
    all
}

/// Texts of the targets in whose entry of `cargo metadata` this key is false.
fn targets_without(key: &str) -> Vec<(String, Vec<String>)> {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version=1"]).unwrap();
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let targets = packages
        .iter()
        .flat_map(|p| p["targets"].as_array().unwrap());
    let without = targets.filter(|t| t[key] == false && (t["kind"][0] == "lib" || key == "test"));
    let texts = without.map(|t| {
        let file = PathBuf::from(t["src_path"].as_str().unwrap());
        (
            t["name"].to_string(),
            modules(&file, file.parent().unwrap()),
        )
    });
    texts.collect()
}

#[test]
fn no_target_whose_tests_are_off_has_a_test() {
    let off = targets_without("test");
    assert!(off.len() > 8, "the targets are found");
    for (name, texts) in off {
        let tests = texts
            .iter()
            .any(|t| t.contains("#[test]") || t.contains("#[tokio::test"));
        assert!(!tests, "{name} has tests and `test = false`");
    }
}

#[test]
fn no_library_whose_doc_tests_are_off_has_a_doc_test() {
    let off = targets_without("doctest");
    assert!(off.len() > 8, "the libraries are found");
    for (name, texts) in off {
        for text in texts {
            let docs = text.lines().filter_map(|line| {
                let line = line.trim();
                let doc = line.strip_prefix("///").or(line.strip_prefix("//!"))?;
                doc.trim().strip_prefix("```")
            });
            // Every second fence closes a block.
            let code = docs.step_by(2).find(|language| *language != "text");
            assert_eq!(code, None, "{name} has a doc test and `doctest = false`");
        }
    }
}

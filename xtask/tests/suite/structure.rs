//! Rules for the structure of the sources.

use std::path::Path;

use xtask::structure::{
    Crate, Measures, cycles, duplicate_types, load, long_function_names, measure, module_cycles,
};

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

//! The shape of the sources, which no compiler checks.

use std::path::Path;

use xtask::structure::{Crate, cycles, duplicate_types, load, module_cycles};

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

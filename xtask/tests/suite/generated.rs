//! The generated files of the repository are fresh.

use std::path::Path;

use xtask::generate::stale;

#[test]
fn make_generate_changes_no_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let stale: Vec<_> = stale(root).unwrap().into_iter().map(|f| f.path).collect();
    assert!(stale.is_empty(), "run `make generate`: {stale:?}");
}

//! The documentation has no broken links.

use std::path::Path;

use xtask::links::broken;

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    assert_eq!(broken(root).unwrap(), Vec::<String>::new());
}

#[test]
fn a_link_to_no_file_or_no_heading_is_found_where_it_is() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(
        "README.md",
        "# One\n[a](docs/a.md#two) [b](#one) [c](https://x.example/#y)\n",
    );
    write(
        "docs/a.md",
        "## Two\n[up](../README.md#one) `x`\n```\n[code](nowhere.md)\n```\n",
    );
    write(
        "operator/a.rs",
        "const PAGE: &str = \"docs/a.md#two\"; // README.md.\n",
    );
    assert_eq!(broken(root.path()).unwrap(), Vec::<String>::new());
    write("docs/a.md", "## Too\n[up](../READ.md) [here](#two)\n");
    let found = broken(root.path()).unwrap();
    let expected = [
        "README.md: docs/a.md#two: no such heading",
        "docs/a.md: ../READ.md: no such file",
        "docs/a.md: #two: no such heading",
        "operator/a.rs: docs/a.md#two: no such heading",
    ];
    assert_eq!(found, expected);
}

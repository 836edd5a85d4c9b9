//! Manifests, samples and pages use only images that `make image` builds, and the README shows
//! where to set other image names.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use xtask::image;

const PREFIX: &str = "ghcr.io/lockstep-dev/";
const TAG: &str = concat!("v", env!("CARGO_PKG_VERSION"));

fn below(path: &Path, out: &mut Vec<PathBuf>) {
    if !path.is_dir() {
        out.push(path.to_owned());
        return;
    }
    for entry in std::fs::read_dir(path).unwrap() {
        below(&entry.unwrap().path(), out);
    }
}

/// Image names with Lockstep's prefix, each with the text after it.
fn named(text: &str) -> Vec<(&str, &str)> {
    let of_name = |c: char| c.is_ascii_lowercase() || c == '-';
    let rest = text.split(PREFIX).skip(1);
    rest.map(|r| r.split_at(r.find(|c| !of_name(c)).unwrap_or(r.len())))
        .collect()
}

/// Faults of the Lockstep images in a text. Lockstep's own manifests (`is_ours`) use no other
/// images.
fn wrong(text: &str, is_ours: bool) -> Vec<String> {
    let built: BTreeSet<&str> = image::names().collect();
    let mut out = Vec::new();
    for (name, after) in named(text) {
        if !built.contains(name) {
            out.push(format!("{name} is not built"));
        }
        if after
            .strip_prefix(':')
            .is_some_and(|tag| !tag.starts_with(TAG))
        {
            out.push(format!("{name}{after} is not {TAG}"));
        }
    }
    let lines = text.lines().map(|l| l.trim_start_matches([' ', '-']));
    let images = lines.filter_map(|l| l.strip_prefix("image: "));
    let foreign = images.filter(|i| is_ours && i.contains('/') && !i.starts_with(PREFIX));
    out.extend(foreign.map(|i| format!("{i} is of another registry")));
    out
}

#[test]
fn no_image_is_named_that_is_not_built() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut all = String::new();
    for part in ["README.md", "bundle", "config", "docs", "samples"] {
        let mut files = Vec::new();
        below(&root.join(part), &mut files);
        for file in files {
            let Ok(text) = std::fs::read_to_string(&file) else {
                continue;
            };
            let wrong = wrong(&text, ["bundle", "config"].contains(&part));
            assert_eq!(wrong, Vec::<String>::new(), "{}", file.display());
            all.push_str(&text);
        }
    }
    let seen: BTreeSet<&str> = named(&all).into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        seen,
        image::names().collect(),
        "an image that nothing names"
    );
}

#[test]
fn an_image_that_is_not_built_old_or_of_another_registry_is_noticed() {
    for (text, expected) in [
        (
            "a ghcr.io/lockstep-dev/lockstep-scheduler b",
            "is not built",
        ),
        (
            "image: ghcr.io/lockstep-dev/lockstep-agent:v0.0.9",
            "is not v",
        ),
        (
            "  - image: docker.io/library/busybox",
            "is of another registry",
        ),
    ] {
        let found = wrong(text, true);
        assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
    }
    assert_eq!(
        wrong("image: docker.io/me/trainer", false),
        Vec::<String>::new()
    );
    assert_eq!(wrong("image: lockstep-agent", true), Vec::<String>::new());
}

/// Images that the overlays do not map to the registry and the tag of this version.
fn unnamed<'a>(images: &'a BTreeSet<String>, overlays: &str) -> Vec<&'a String> {
    let renamed = |image: &&String| {
        let entry = format!("- name: {image}\n  newName: {PREFIX}{image}\n  newTag: {TAG}\n");
        overlays.contains(&entry)
    };
    images.iter().filter(|i| !renamed(i)).collect()
}

#[test]
fn names_without_a_registry_get_one_in_the_overlays() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut overlays = Vec::new();
    below(&root.join("config/overlays"), &mut overlays);
    let overlays = overlays.iter().map(|f| std::fs::read_to_string(f).unwrap());
    let overlays: String = overlays.collect();
    let mut files = Vec::new();
    for part in ["config/manager", "config/components"] {
        below(&root.join(part), &mut files);
    }
    let mut images = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        let lines = text.lines().map(str::trim_start);
        let lines = lines.filter_map(|l| l.strip_prefix("image: "));
        images.extend(lines.filter(|l| !l.contains('/')).map(str::to_owned));
    }
    assert_eq!(images.len(), 2, "{images:?}");
    assert!(unnamed(&images, &overlays).is_empty(), "{overlays}");
    // An old tag, or another image in its place.
    let old = overlays.replace(&format!("newTag: {TAG}"), "newTag: v0.0.9");
    assert_eq!(unnamed(&images, &old).len(), 2, "{old}");
    let other = overlays.replace("- name: lockstep-agent\n", "- name: lockstep-run\n");
    assert_eq!(unnamed(&images, &other), ["lockstep-agent"]);
}

/// Files that the page does not name.
fn unmentioned<'a>(page: &str, files: &'a [String]) -> Vec<&'a String> {
    let mentioned = |path: &&String| page.contains(&format!("`{path}`"));
    files.iter().filter(|path| !mentioned(path)).collect()
}

#[test]
fn the_page_of_images_names_each_file_of_an_installation_that_names_an_image() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = std::fs::read_to_string(root.join("docs/images.md")).unwrap();
    let mut files = Vec::new();
    below(&root.join("config"), &mut files);
    let naming = files.iter().filter(|file| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        !named(&text).is_empty()
    });
    let path = |file: &PathBuf| file.strip_prefix(root).unwrap().display().to_string();
    let naming: Vec<String> = naming.map(path).collect();
    assert_eq!(naming.len(), 3, "{naming:?}");
    assert!(unmentioned(&page, &naming).is_empty(), "{naming:?}");
    let without = page.replace(&format!("`{}`", naming[1]), "it");
    assert_eq!(unmentioned(&without, &naming), [&naming[1]]);
}

//! The folder of a release: everything that a user downloads, with images by digest.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::bundle::{Images, PACKAGE, PREFIX, REPOSITORY, SUMMARY, TAG};
use crate::chart::{released, substitute};
use crate::image::{Commit, Entry, Layer, names};
use crate::openvex::{document, ignored_advisories};
use crate::plugin::PROGRAM;
use crate::read_folder;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What `make image` and `make plugin` have built.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Folder of the image layouts and archives.
    pub images: &'a Path,
    /// Folder with one folder per platform.
    pub plugins: &'a Path,
    /// Prefix of the image names.
    pub prefix: &'a str,
}

/// Writes the folder, except for what other programs make of it: one-file manifests, bills of
/// materials and checksums.
pub fn release(root: &Path, built: &Parts<'_>, out: &Path) -> Result<()> {
    let images = Images::by_digest(built.prefix, built.images)?;
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| out.display().to_string())?;
    }
    for name in names() {
        let archive = format!("{name}.tar");
        let content = fs::read(built.images.join(&archive)).with_context(|| archive.clone())?;
        write(&out.join("images").join(archive), &content)?;
    }
    let named = [&images.manager, &images.agent, &images.supervisor];
    let lines = format!("{}\n", named.map(String::as_str).join("\n"));
    write(&out.join("images.txt"), lines.as_bytes())?;

    let file = |(path, text): (PathBuf, String)| {
        Entry::text(&format!("{PACKAGE}/{}", path.display()), text.into())
    };
    let chart = released(root, &images)?.into_iter().map(file).collect();
    let chart = Layer::new(chart)?.compressed()?;
    write(&out.join(format!("{PACKAGE}-{VERSION}.tgz")), &chart)?;

    for folder in ["config", "crds"] {
        for (path, text) in read_folder(&root.join(folder))? {
            write(&out.join(folder).join(path), text.as_bytes())?;
        }
    }
    name_images(&out.join("config"), &images)?;
    write(&out.join("lockstep.yaml"), &plugins(built.plugins, out)?)?;
    state_vulnerabilities(root, &named, out)?;
    let changes = fs::read_to_string(root.join("CHANGELOG.md")).context("the changelog")?;
    write(&out.join("RELEASE_NOTES.md"), notes(&changes)?.as_bytes())
}

/// Writes an OpenVEX document for each image if an advisory is ignored.
fn state_vulnerabilities(root: &Path, images: &[&String], out: &Path) -> Result<()> {
    let deny = fs::read_to_string(root.join("deny.toml")).context("deny.toml")?;
    let ignored = ignored_advisories(&deny)?;
    if ignored.is_empty() {
        // The specification requires at least one statement.
        return Ok(());
    }
    let time = Commit::of(root).time.context("the time of the commit")?;
    for image in images {
        let (name, document) = document(image, &ignored, &time)?;
        let path = out.join(format!("vex/{name}.openvex.json"));
        write(&path, format!("{document:#}\n").as_bytes())?;
    }
    Ok(())
}

/// Replaces the tags in the overlays and the configuration by digests.
fn name_images(config: &Path, images: &Images) -> Result<()> {
    for (file, program, image) in [
        (
            "overlays/default/kustomization.yaml",
            "manager",
            &images.manager,
        ),
        ("overlays/full/kustomization.yaml", "agent", &images.agent),
    ] {
        let (name, digest) = image.split_once('@').context("a digest")?;
        let tagged = format!("  newName: {PREFIX}lockstep-{program}\n  newTag: {TAG}\n");
        let named = format!("  newName: {name}\n  digest: {digest}\n");
        replace(&config.join(file), &tagged, &named)?;
    }
    let tagged = format!("image: {PREFIX}lockstep-run:{TAG}\n");
    let named = format!("image: {}\n", images.supervisor);
    replace(&config.join("manager/config.yaml"), &tagged, &named)
}

fn replace(file: &Path, from: &str, to: &str) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let text = substitute(&text, from, to).with_context(|| file.display().to_string())?;
    fs::write(file, text).with_context(|| file.display().to_string())
}

/// Writes an archive of the plugin for each platform, and returns the manifest for krew.
fn plugins(folder: &Path, out: &Path) -> Result<Vec<u8>> {
    let mut folders: Vec<PathBuf> = Vec::new();
    let entries = fs::read_dir(folder)
        .with_context(|| format!("{}: run `make plugin` first", folder.display()))?;
    for entry in entries {
        folders.push(entry?.path());
    }
    folders.sort();
    let mut platforms = Vec::new();
    for folder in folders {
        let architecture = folder.file_name().context("a platform")?.to_string_lossy();
        let read = |name: &str| fs::read(folder.join(name)).with_context(|| name.to_owned());
        let archive = Layer::new(vec![
            Entry::program(PROGRAM, read(PROGRAM)?),
            Entry::text("LICENSE", read("LICENSE")?),
            Entry::text("NOTICES", read("NOTICES")?),
        ])?;
        let archive = archive.compressed()?;
        let name = format!("{PROGRAM}_linux_{architecture}.tar.gz");
        write(&out.join(&name), &archive)?;
        platforms.push(json!({
            "selector": {"matchLabels": {"os": "linux", "arch": architecture}},
            "uri": format!("{REPOSITORY}/releases/download/{TAG}/{name}"),
            "sha256": format!("{:x}", Sha256::digest(&archive)),
            "bin": PROGRAM,
        }));
    }
    ensure!(
        !platforms.is_empty(),
        "{} has no platform",
        folder.display()
    );
    let manifest: Value = json!({
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": PACKAGE},
        "spec": {
            "version": TAG,
            "homepage": REPOSITORY,
            "shortDescription": "Inspect gang-scheduled training jobs",
            "description": SUMMARY,
            "platforms": platforms,
        },
    });
    Ok(serde_saphyr::to_string(&manifest)?.into())
}

/// The section of this version, with links that work outside of the repository.
fn notes(changes: &str) -> Result<String> {
    let headings = [
        format!("\n## {VERSION}\n"),
        format!("\n## Unreleased ({VERSION})\n"),
    ];
    let mut found = headings
        .iter()
        .filter_map(|h| changes.split_once(h.as_str()));
    let (_, section) = found
        .next()
        .with_context(|| format!("CHANGELOG.md has no section {VERSION}"))?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut out = format!("# Lockstep {VERSION}\n");
    for (at, part) in section.split("](").enumerate() {
        if at > 0 {
            out.push_str("](");
            if !part.starts_with("http") {
                let _ = write!(out, "{REPOSITORY}/blob/{TAG}/");
            }
        }
        out.push_str(part);
    }
    Ok(out)
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let folder = path.parent().context("a folder")?;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    fs::write(path, content).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notes_are_the_section_of_the_version_with_whole_links() {
        let section = format!(
            "# C\n\n## Unreleased ({VERSION})\n\n- [a](docs/install.md), [b](https://b)\n\n## 0.0.9\n\n- old\n"
        );
        let expected = format!(
            "# Lockstep {VERSION}\n\n- [a]({REPOSITORY}/blob/{TAG}/docs/install.md), [b](https://b)\n"
        );
        assert_eq!(notes(&section).unwrap(), expected);
        let refused = notes("# C\n\n## 0.0.9\n").unwrap_err().to_string();
        assert_eq!(refused, format!("CHANGELOG.md has no section {VERSION}"));
    }
}

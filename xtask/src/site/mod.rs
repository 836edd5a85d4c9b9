//! The documentation site: the pages for mdBook, the checks of what it has built, and the index of
//! versions.

mod built;
mod clicks;
mod summary;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bundle::REPOSITORY;
use crate::links::{below, lines, normal};

pub use self::built::broken;
pub use self::clicks::{Clicks, clicks};
pub use self::summary::{SUMMARY, SidebarPage, sidebar};

/// Folder of the pages.
const DOCS: &str = "docs";
/// Settings of mdBook.
const BOOK: &str = "docs/book.toml";
/// The page that a reader sees first.
pub const START: &str = "README.md";

/// A version of the site.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// Root of the checkout.
    pub root: &'a Path,
    /// Tag, or `main`. Also the folder of the version, and where links out of the site lead.
    pub version: &'a str,
    /// Folder for the versions.
    pub out: &'a Path,
    /// Folder of mdbook and mdbook-mermaid.
    pub tools: &'a Path,
}

/// Builds a version and the index of all versions, and checks links, anchors and requests of what
/// was built.
pub fn build(site: Site<'_>) -> Result<()> {
    let book = site.out.join("src").join(site.version);
    if book.exists() {
        fs::remove_dir_all(&book)?;
    }
    let source = book.join("src");
    for (path, content) in pages(site.root, site.version)? {
        write(&source.join(path), &content)?;
    }
    let settings = site.root.join(BOOK);
    let settings = fs::read(&settings).with_context(|| settings.display().to_string())?;
    write(&book.join("book.toml"), &settings)?;
    let target = site.out.join(site.version);
    run(site, "mdbook-mermaid", &["install".as_ref(), &book])?;
    let args = ["build".as_ref(), "--dest-dir".as_ref(), &*target, &book];
    run(site, "mdbook", &args)?;
    write(&site.out.join("index.html"), index(site.out)?.as_bytes())?;
    let broken = broken(&target)?;
    ensure!(broken.is_empty(), "{}", broken.join("\n"));
    Ok(())
}

fn run(site: Site<'_>, program: &str, args: &[&Path]) -> Result<()> {
    let program = site.tools.join(program);
    // mdbook finds mdbook-mermaid there.
    let mut folders = vec![site.tools.to_owned()];
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    let mut command = Command::new(&program);
    command
        .args(args)
        .env("PATH", std::env::join_paths(folders)?);
    command.env("MDBOOK_BOOK__TITLE", format!("Lockstep {}", site.version));
    let status = command.status();
    let status = status.with_context(|| format!("{}: make docs-tools", program.display()))?;
    ensure!(status.success(), "{}: {status}", program.display());
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::create_dir_all(path.parent().context("a folder")?)?;
    fs::write(path, content).with_context(|| path.display().to_string())
}

/// The sources of the site by their path in it: `docs/` as it is, and the pages of the root that
/// the sidebar has. Links to other files lead to the repository.
///
/// # Errors
/// A file is unreadable.
pub fn pages(root: &Path, version: &str) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = Vec::new();
    below(&root.join(DOCS), &mut files)?;
    let sidebar = sidebar(root)?;
    let of_root = sidebar.iter().map(|page| page.path.as_path());
    let of_root = of_root.filter(|path| !path.starts_with(DOCS));
    files.extend(of_root.map(|path| root.join(path)));
    let mut out = BTreeMap::new();
    for file in files {
        let path = file.strip_prefix(root)?.to_owned();
        let mut content = fs::read(&file).with_context(|| path.display().to_string())?;
        if path.extension().is_some_and(|e| e == "md") {
            let text = String::from_utf8(content)?;
            let mut text = lead(root, &path, &text, version);
            if path == Path::new(START) {
                let line =
                    format!("\nThis is version {version}: [other versions](../index.html).\n");
                text.push_str(&line);
            }
            content = text.into_bytes();
        }
        if path != Path::new(BOOK) {
            out.insert(place(&path), content);
        }
    }
    Ok(out)
}

/// Path in the site of a file of the repository.
fn place(path: &Path) -> PathBuf {
    let inside = path.strip_prefix(DOCS).unwrap_or(path);
    if inside.ends_with("README.md") {
        inside.with_file_name("index.md")
    } else {
        inside.to_owned()
    }
}

/// A page whose relative links lead to pages of the site or to the repository.
fn lead(root: &Path, page: &Path, text: &str, version: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (line, prose) in lines(text) {
        if prose {
            let mut parts = line.split("](");
            out.extend(parts.next());
            for part in parts {
                let (target, rest) = part.split_once(')').unwrap_or((part, ""));
                let target = address(root, page, target, version);
                out.extend(["](", &target, ")", rest]);
            }
        } else {
            out.push_str(line);
        }
        out.push('\n');
    }
    out
}

/// Where a link of a page leads in the site.
fn address(root: &Path, page: &Path, link: &str, version: &str) -> String {
    if link.contains(':') || link.starts_with('#') {
        return link.to_owned();
    }
    let (path, anchor) = link
        .split_once('#')
        .map_or((link, ""), |(path, _)| (path, &link[path.len()..]));
    let mut to = normal(&page.parent().unwrap_or(page).join(path));
    if to.starts_with(DOCS) && root.join(&to).is_dir() {
        to.push("README.md");
    }
    let is_page = to.parent() == Some(Path::new("")) && to.extension().is_some_and(|e| e == "md");
    if to.starts_with(DOCS) || is_page {
        let from = place(page);
        let up = from.components().count() - 1;
        return format!("{}{}{anchor}", "../".repeat(up), place(&to).display());
    }
    let kind = if root.join(&to).is_dir() {
        "tree"
    } else {
        "blob"
    };
    format!("{REPOSITORY}/{kind}/{version}/{}{anchor}", to.display())
}

/// A page that lists the versions in a folder.
fn index(out: &Path) -> Result<String> {
    let mut versions = Vec::new();
    for entry in fs::read_dir(out)? {
        let path = entry?.path();
        if path.join("index.html").exists() {
            let name = path.file_name().context("a name")?;
            versions.push(name.to_string_lossy().into_owned());
        }
    }
    // `main` before tags, later tags before earlier ones.
    versions.sort_by(|a, b| (b == "main").cmp(&(a == "main")).then_with(|| b.cmp(a)));
    let rows = versions.iter();
    let rows = rows.map(|v| format!("<li><a href=\"{v}/index.html\">{v}</a></li>\n"));
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Lockstep: versions of the documentation</title>\n<h1>Lockstep</h1>\n<p>Versions of the documentation:</p>\n<ul>\n{}</ul>\n</html>\n",
        rows.collect::<String>()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_pages_of_the_site_or_to_the_repository() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["docs/runbooks", "samples"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let at = |page: &str, link: &str| address(root.path(), Path::new(page), link, "v1");
        assert_eq!(at("docs/how-to/scale.md", "../b.md#c"), "../b.md#c");
        assert_eq!(
            at("docs/how-to/scale.md", "README.md"),
            "../how-to/index.md"
        );
        assert_eq!(
            at("docs/how-to/scale.md", "../../README.md#x"),
            "../index.md#x"
        );
        assert_eq!(at("docs/cli.md", "runbooks"), "runbooks/index.md");
        assert_eq!(at("README.md", "docs/cli.md"), "cli.md");
        assert_eq!(at("README.md", "docs/pictures/a.svg"), "pictures/a.svg");
        let blob = format!("{REPOSITORY}/blob/v1/samples/a.yaml");
        assert_eq!(at("docs/how-to/scale.md", "../../samples/a.yaml"), blob);
        let tree = format!("{REPOSITORY}/tree/v1/samples");
        assert_eq!(at("docs/cli.md", "../samples"), tree);
        assert_eq!(
            at("docs/cli.md", "https://x.example/a.md"),
            "https://x.example/a.md"
        );
    }

    #[test]
    fn links_in_code_blocks_stay() {
        let text = "[a](../LICENSE)\n```\n[a](../LICENSE)\n```\n";
        let led = lead(Path::new("/"), Path::new("docs/cli.md"), text, "main");
        assert_eq!(led.matches("](../LICENSE)").count(), 1, "{led}");
    }
}

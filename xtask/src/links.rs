//! Finds broken links: relative links in Markdown, and pages named in sources and manifests. URLs
//! are not checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

/// Folders with pages, or with files that name pages.
const FOLDERS: [&str; 6] = [
    "config",
    "docs",
    "operator",
    "samples",
    "tests",
    "xtask/src",
];
/// Folders with third-party files.
const FOREIGN: [&str; 2] = ["target", "node_modules"];

/// Returns every link to a missing file or heading, with the file that contains it.
pub fn broken(root: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root).context("the root")? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "md") {
            files.push(path);
        }
    }
    for folder in FOLDERS {
        below(&root.join(folder), &mut files)?;
    }
    files.sort();
    let mut anchors = BTreeMap::new();
    let mut out = Vec::new();
    for file in &files {
        let Ok(text) = fs::read_to_string(file) else {
            continue;
        };
        let (links, base) = match file.extension().and_then(|e| e.to_str()) {
            Some("md") => (links(&text), file.parent().unwrap_or(root)),
            Some("rs" | "yaml") => (named(&text), root),
            _ => continue,
        };
        for link in links {
            if let Some(why) = leads_nowhere(file, base, &link, &mut anchors)? {
                let file = file.strip_prefix(root).unwrap_or(file);
                out.push(format!("{}: {link}: {why}", file.display()));
            }
        }
    }
    Ok(out)
}

pub(crate) fn below(folder: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry?.path();
        if !path.is_dir() {
            out.push(path);
        } else if !FOREIGN.iter().any(|name| path.ends_with(name)) {
            below(&path, out)?;
        }
    }
    Ok(())
}

fn leads_nowhere(
    file: &Path,
    base: &Path,
    link: &str,
    anchors: &mut BTreeMap<PathBuf, BTreeSet<String>>,
) -> Result<Option<&'static str>> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let to = match path {
        "" => file.to_owned(),
        path => normal(&base.join(path)),
    };
    if !to.exists() {
        return Ok(Some("no such file"));
    }
    if anchor.is_empty() {
        return Ok(None);
    }
    if !anchors.contains_key(&to) {
        let page = fs::read_to_string(&to).with_context(|| to.display().to_string())?;
        anchors.insert(to.clone(), headings(&page));
    }
    let there = anchors.get(&to).is_some_and(|of| of.contains(anchor));
    Ok((!there).then_some("no such heading"))
}

/// Resolves `..`, so that each page has one name.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            out.pop();
        } else {
            out.push(part);
        }
    }
    out
}

/// Lines of a page, each with whether it is outside code blocks.
pub(crate) fn lines(page: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut code = false;
    page.lines().map(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (line, !code && !fence)
    })
}

/// Lines of a page outside code blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    lines(page).filter_map(|(line, prose)| prose.then_some(line))
}

/// Relative targets of `[text](target)`.
pub(crate) fn links(page: &str) -> Vec<String> {
    let mut out = Vec::new();
    for line in prose(page) {
        for rest in line.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            if !target.contains(':') && !target.contains('<') {
                out.push(target.to_owned());
            }
        }
    }
    out
}

/// Pages named from the root in a source or manifest: `docs/cli.md#doctor`, `README.md#install`.
fn named(text: &str) -> Vec<String> {
    let of_name = |c: char| c.is_ascii_alphanumeric() || "/.#_-".contains(c);
    let words = text.split(|c| !of_name(c));
    let is_page = |w: &&str| {
        let path = Path::new(w.split('#').next().unwrap_or_default());
        let is_markdown = path.extension().is_some_and(|e| e == "md");
        is_markdown && (path.starts_with("docs") || path == Path::new("README.md"))
    };
    words
        .map(|w| w.trim_end_matches('.'))
        .filter(is_page)
        .map(str::to_owned)
        .collect()
}

/// Anchors of a page's headings, as GitHub generates them.
pub(crate) fn headings(page: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut out = BTreeSet::new();
    for line in prose(page) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let slug = slug(title.trim());
        let times = seen.entry(slug.clone()).or_default();
        out.insert(match *times {
            0 => slug,
            n => format!("{slug}-{n}"),
        });
        *times += 1;
    }
    out
}

/// Lower case, hyphens between words, no punctuation; of a link only its text.
fn slug(title: &str) -> String {
    let mut text = String::new();
    let mut target = false;
    for (at, c) in title.char_indices() {
        target |= title[..at].ends_with("](");
        match c {
            ')' if target => target = false,
            _ if target => {}
            ' ' | '-' => text.push('-'),
            c if c.is_alphanumeric() || c == '_' => text.extend(c.to_lowercase()),
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_a_viewer_of_repositories() {
        for (title, anchor) in [
            ("Limits, honestly", "limits-honestly"),
            ("OLM", "olm"),
            ("restart, suspend, resume", "restart-suspend-resume"),
            ("`status` of [a job](a.md#b), now", "status-of-a-job-now"),
        ] {
            assert_eq!(slug(title), anchor);
        }
        let page = "# A\n## B\n```\n# no\n```\n## B\n#!no\n";
        assert_eq!(headings(page), ["a", "b", "b-1"].map(str::to_owned).into());
    }
}

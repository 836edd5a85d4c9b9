//! Checks of the pages that mdBook has written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::links::{below, normal};

/// Returns links to missing files or anchors, and requests to other hosts, with the page that has
/// them.
///
/// # Errors
/// A file is unreadable.
pub fn broken(site: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    below(site, &mut files)?;
    files.sort();
    let mut pages = BTreeMap::new();
    let mut out = Vec::new();
    for file in files {
        let is = |extension: &str| file.extension().is_some_and(|e| e == extension);
        if is("css") || is("html") {
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            out.extend(requests(&text).map(|what| format!("{}: {what}", file.display())));
            if is("html") {
                pages.insert(file, text);
            }
        }
    }
    let ids: BTreeMap<&Path, BTreeSet<&str>> = pages
        .iter()
        .map(|(file, text)| (file.as_path(), values(text, " id=\"").collect()))
        .collect();
    for (file, text) in &pages {
        for link in values(text, " href=\"").chain(values(text, " src=\"")) {
            if let Some(why) = leads_nowhere(file, link, &ids) {
                out.push(format!("{}: {link}: {why}", file.display()));
            }
        }
    }
    Ok(out)
}

/// Values of an attribute.
fn values<'a>(text: &'a str, attribute: &'a str) -> impl Iterator<Item = &'a str> {
    let rest = text.split(attribute).skip(1);
    rest.filter_map(|rest| rest.split('"').next())
}

/// What a browser would fetch from another host.
fn requests(text: &str) -> impl Iterator<Item = &str> {
    let fetched = |tag: &&str| {
        let of_other_host = [
            "src=\"http",
            "src=\"//",
            "url(http",
            "url(\"http",
            "@import url",
        ];
        of_other_host.iter().any(|part| tag.contains(part))
            || (tag.starts_with("link ") && tag.contains("href=\"http"))
    };
    let tags = text.split(['<', '>', ';']);
    tags.filter(fetched)
}

fn leads_nowhere(
    file: &Path,
    link: &str,
    ids: &BTreeMap<&Path, BTreeSet<&str>>,
) -> Option<&'static str> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    if path.contains(':') {
        return None;
    }
    let path = path.split('?').next().unwrap_or_default();
    let to: PathBuf = match path {
        "" => file.to_owned(),
        path => normal(&file.parent()?.join(path)),
    };
    if !to.exists() {
        return Some("no such file");
    }
    let known = ids.get(to.as_path());
    let missing = !anchor.is_empty() && known.is_some_and(|ids| !ids.contains(anchor));
    missing.then_some("no such anchor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_an_anchor_and_a_request_to_another_host_are_found() {
        let site = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(site.path().join(name), text).unwrap();
        write("b.html", "<h1 id=\"c\">");
        write(
            "a.html",
            "<a href=\"b.html#c\"><a href=\"https://x.example/\"><a href=\"#d\" id=\"d\">",
        );
        assert_eq!(broken(site.path()).unwrap(), Vec::<String>::new());
        write(
            "a.html",
            "<a href=\"b.html#e\"><img src=\"c.png\"><script src=\"https://x.example/a.js\">",
        );
        let found = broken(site.path()).unwrap();
        let ends: Vec<&str> = found
            .iter()
            .filter_map(|f| f.split_once("a.html: ").map(|(_, rest)| rest))
            .collect();
        let expected = [
            "script src=\"https://x.example/a.js\"",
            "b.html#e: no such anchor",
            "c.png: no such file",
        ];
        assert_eq!(ends, expected);
    }
}

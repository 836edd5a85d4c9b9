//! How many clicks lead from the start page of the site to a page or a section.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{START, SidebarPage, sidebar};
use crate::links::{headings, links, normal};

/// The least number of clicks from the start page to each page, and to sections that links name.
#[derive(Clone, Debug, Default)]
pub struct Clicks {
    to: BTreeMap<(PathBuf, String), usize>,
}

impl Clicks {
    /// Clicks to a page or section, such as `docs/cli.md#doctor`. A section costs one click in the list of
    /// headings of its page, unless a link leads there. `None`: there is no such place.
    ///
    /// # Errors
    /// The page is unreadable.
    pub fn of(&self, root: &Path, place: &str) -> Result<Option<usize>> {
        let (path, anchor) = place.split_once('#').unwrap_or((place, ""));
        let page = self.to.get(&(path.into(), String::new())).copied();
        if anchor.is_empty() {
            return Ok(page);
        }
        let text = fs::read_to_string(root.join(path)).with_context(|| path.to_owned())?;
        if !headings(&text).contains(anchor) {
            return Ok(None);
        }
        let direct = self.to.get(&(path.into(), anchor.into())).copied();
        Ok(page.map(|n| n + 1).into_iter().chain(direct).min())
    }
}

/// Follows sidebar and links from the start page.
///
/// # Errors
/// A page is unreadable.
pub fn clicks(root: &Path) -> Result<Clicks> {
    let sidebar = sidebar(root)?;
    let mut out = Clicks::default();
    // By the number of clicks, because the sidebar may need two.
    let mut queue = BinaryHeap::new();
    queue.push(Reverse((0, PathBuf::from(START), String::new())));
    while let Some(Reverse((clicks, page, anchor))) = queue.pop() {
        let known = out.to.get(&(page.clone(), anchor.clone()));
        if known.is_some_and(|n| *n <= clicks) {
            continue;
        }
        out.to.insert((page.clone(), anchor.clone()), clicks);
        if !anchor.is_empty() {
            queue.push(Reverse((clicks, page, String::new())));
            continue;
        }
        let next = leads(root, &page, &sidebar)?;
        let next = next.into_iter();
        queue.extend(next.map(|(p, a, cost)| Reverse((clicks + cost, p, a))));
    }
    Ok(out)
}

/// Pages and sections that a page leads to, with the clicks to reach them.
fn leads(
    root: &Path,
    page: &Path,
    sidebar: &[SidebarPage],
) -> Result<Vec<(PathBuf, String, usize)>> {
    let beside = sidebar.iter();
    let beside = beside.map(|p| (p.path.clone(), String::new(), p.clicks));
    let mut out: Vec<_> = beside.collect();
    let text = fs::read_to_string(root.join(page)).with_context(|| page.display().to_string())?;
    for link in links(&text) {
        let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
        let mut to = match path {
            "" => page.to_owned(),
            path => normal(&page.parent().unwrap_or(page).join(path)),
        };
        if root.join(&to).is_dir() {
            to.push("README.md");
        }
        if sidebar.iter().any(|p| p.path == to) {
            out.push((to, anchor.to_owned(), 1));
        }
    }
    Ok(out)
}

//! The sidebar of the site: `docs/SUMMARY.md`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::links::normal;

/// The file with the sidebar.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// A page in the sidebar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidebarPage {
    /// The part of the sidebar.
    pub part: String,
    /// Path from the root of the repository.
    pub path: PathBuf,
    /// Clicks to reach it from any page: the second unfolds the page above it.
    pub clicks: usize,
}

/// The pages of the sidebar, in their order.
///
/// # Errors
/// The file is unreadable.
pub fn sidebar(root: &Path) -> Result<Vec<SidebarPage>> {
    let text = fs::read_to_string(root.join(SUMMARY)).context(SUMMARY)?;
    let folder = Path::new(SUMMARY).parent().unwrap_or(Path::new(""));
    let mut part = "";
    let mut out = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            part = title;
        }
        let Some((before, target)) = line.split_once("](") else {
            continue;
        };
        let target = target.trim_end_matches(')');
        out.push(SidebarPage {
            part: part.to_owned(),
            path: normal(&folder.join(target)),
            clicks: if before.starts_with(' ') { 2 } else { 1 },
        });
    }
    Ok(out)
}

//! Checks of the repository beyond clippy, and builds of artifacts beyond programs.

pub mod bundle;
pub mod chart;
mod colours;
mod configuration;
mod cri;
mod dashboards;
pub mod generate;
pub mod image;
pub mod links;
pub mod metrics;
mod node_signals;
pub mod openvex;
mod pictures;
pub mod plugin;
pub mod query;
mod reference;
pub mod release;
pub mod site;
pub mod structure;
mod vocabulary;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Relative path and content of the files in a folder and its folders.
pub fn read_folder(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut out = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        let name = Path::new(path.file_name().context("a name")?);
        if path.is_dir() {
            let inner = read_folder(&path)?.into_iter();
            out.extend(inner.map(|(inner, text)| (name.join(inner), text)));
        } else {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            out.push((name.to_owned(), text));
        }
    }
    Ok(out)
}

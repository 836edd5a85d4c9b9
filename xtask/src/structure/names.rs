//! Names of public types and of functions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use syn::{Item, Visibility};

use super::source::{Crate, sorted};

/// Names of public types defined in several files of these crates, with the files.
pub fn duplicate_types(crates: &[Crate]) -> BTreeMap<String, BTreeSet<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in crates.iter().flat_map(|krate| &krate.files) {
        for name in public_types(&file.syntax.items) {
            places
                .entry(name)
                .or_default()
                .push(file.path.display().to_string());
        }
    }
    places.retain(|_, files| files.len() > 1);
    places
        .into_iter()
        .map(|(name, files)| (name, files.into_iter().collect()))
        .collect()
}

/// Function names of more than `limit` characters in the Rust files below `folder`, with the file.
///
/// # Errors
/// A file is unreadable.
pub fn long_function_names(folder: &Path, limit: usize) -> Result<Vec<String>> {
    let mut long = Vec::new();
    for path in sorted(folder)? {
        if path.is_dir() {
            long.extend(long_function_names(&path, limit)?);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let names = text.split("fn ").skip(1).filter_map(|rest| {
                rest.split(|c: char| !c.is_alphanumeric() && c != '_')
                    .next()
            });
            let names = names.filter(|name| name.len() > limit);
            long.extend(names.map(|name| format!("{}: {name}", path.display())));
        }
    }
    Ok(long)
}

fn public_types(items: &[Item]) -> Vec<String> {
    let mut names = Vec::new();
    for item in items {
        let (vis, ident) = match item {
            Item::Enum(i) => (&i.vis, &i.ident),
            Item::Struct(i) => (&i.vis, &i.ident),
            Item::Trait(i) => (&i.vis, &i.ident),
            Item::Type(i) => (&i.vis, &i.ident),
            Item::Mod(i) => {
                let inner = i.content.iter().flat_map(|(_, items)| public_types(items));
                names.extend(inner);
                continue;
            }
            _ => continue,
        };
        if matches!(vis, Visibility::Public(_)) {
            names.push(ident.to_string());
        }
    }
    names
}

//! Crates, files and modules.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::{Attribute, Item};

pub struct Crate {
    /// Path of its folder from the root, such as `operator/engine`.
    pub name: String,
    /// Source files, sorted by path.
    pub files: Vec<SourceFile>,
}

/// A source file without its tests.
pub struct SourceFile {
    /// Path from the root.
    pub path: PathBuf,
    /// Module path of the file; empty for the crate root.
    pub module: Vec<String>,
    /// Syntax tree without items under `#[cfg(test)]`.
    pub syntax: syn::File,
    /// Lines of the whole file.
    pub length: usize,
    /// Words of the comments and the documentation outside of tests.
    pub comment_words: usize,
}

/// Reads the product's crates in the checkout at `root`.
///
/// # Errors
/// A file is unreadable or does not parse.
pub fn load(root: &Path) -> Result<Vec<Crate>> {
    let mut folders = vec![PathBuf::from("api")];
    for entry in sorted(&root.join("operator"))? {
        folders.push(Path::new("operator").join(entry.file_name().context("a folder")?));
    }
    folders.retain(|folder| root.join(folder).join("src").is_dir());
    folders
        .into_iter()
        .map(|folder| load_crate(root, &folder))
        .collect()
}

fn load_crate(root: &Path, folder: &Path) -> Result<Crate> {
    let mut files = Vec::new();
    read_folder(root, &folder.join("src"), &[], &mut files)?;
    let tests = test_modules(&files);
    files.retain(|file: &SourceFile| !tests.iter().any(|test| file.module.starts_with(test)));
    for file in &mut files {
        file.syntax.items.retain(|item| !is_test(attributes(item)));
    }
    Ok(Crate {
        name: folder.display().to_string(),
        files,
    })
}

fn read_folder(
    root: &Path,
    folder: &Path,
    module: &[String],
    files: &mut Vec<SourceFile>,
) -> Result<()> {
    for path in sorted(&root.join(folder))? {
        let name = path.file_stem().context("a name")?.display().to_string();
        let inner = [module, std::slice::from_ref(&name)].concat();
        if path.is_dir() {
            let generated = name == "generated" || name == "bin";
            if !generated {
                read_folder(root, &folder.join(&name), &inner, files)?;
            }
            continue;
        }
        if path.extension().is_none_or(|e| e != "rs") || (module.is_empty() && name == "main") {
            continue;
        }
        let is_root = ["lib", "mod"].contains(&name.as_str());
        let text = std::fs::read_to_string(&path)?;
        files.push(SourceFile {
            syntax: syn::parse_file(&text).with_context(|| path.display().to_string())?,
            path: path.strip_prefix(root)?.to_owned(),
            length: text.lines().count(),
            comment_words: comment_words(&text),
            module: if is_root { module.to_vec() } else { inner },
        });
    }
    Ok(())
}

/// Counts words in lines that are comments, up to the file's module of tests.
fn comment_words(text: &str) -> usize {
    let product = text.split("#[cfg(test)]\nmod tests {").next();
    product
        .into_iter()
        .flat_map(str::lines)
        .filter_map(|line| line.trim_start().strip_prefix("//"))
        .map(|comment| {
            comment
                .trim_start_matches(['/', '!'])
                .split_whitespace()
                .count()
        })
        .sum()
}

pub(super) fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Modules declared under `#[cfg(test)]`.
fn test_modules(files: &[SourceFile]) -> Vec<Vec<String>> {
    let mut tests = Vec::new();
    for file in files {
        for item in &file.syntax.items {
            if let Item::Mod(module) = item
                && is_test(&module.attrs)
            {
                let name = module.ident.to_string();
                tests.push([&file.module[..], &[name]].concat());
            }
        }
    }
    tests
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .meta
                .require_list()
                .is_ok_and(|list| list.tokens.to_string().contains("test"))
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

//! String constants of a source, with their doc comments.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use syn::{Attribute, Expr, Item, Lit};

/// A constant `pub const NAME: &str = "VALUE";`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Constant {
    pub value: String,
    /// The doc comment as one line, for a table cell.
    pub doc: String,
}

/// Public string constants by module; the empty name stands for the root.
pub(super) struct Constants(BTreeMap<String, Vec<Constant>>);

impl Constants {
    pub fn parse(source: &str) -> Result<Self> {
        let file = syn::parse_file(source).context("a Rust source")?;
        let mut all = BTreeMap::new();
        all.insert(String::new(), in_order(&file.items));
        for item in &file.items {
            if let Item::Mod(module) = item
                && let Some((_, items)) = &module.content
            {
                all.insert(module.ident.to_string(), in_order(items));
            }
        }
        Ok(Self(all))
    }

    pub fn module(&self, name: &str) -> &[Constant] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

fn in_order(items: &[Item]) -> Vec<Constant> {
    items.iter().filter_map(constant).collect()
}

fn constant(item: &Item) -> Option<Constant> {
    let Item::Const(c) = item else {
        return None;
    };
    let public = matches!(c.vis, syn::Visibility::Public(_));
    Some(Constant {
        value: literal(&c.expr)?,
        doc: doc(&c.attrs),
    })
    .filter(|_| public)
}

pub(super) fn literal(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Lit(lit) => match &lit.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

fn doc(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter(|a| a.path().is_ident("doc"));
    let lines = lines.filter_map(|a| {
        let value = &a.meta.require_name_value().ok()?.value;
        Some(literal(value)?.trim().to_owned())
    });
    lines.collect::<Vec<_>>().join(" ")
}

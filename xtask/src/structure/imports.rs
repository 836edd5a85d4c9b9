//! Dependencies between files and between modules of a crate, and their cycles.
//!
//! A file depends on the file that *defines* a name: `use crate::Plan` is resolved through `pub use
//! plan::Plan` in `lib.rs` to `plan.rs`. A re-export is no dependency.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::graph::{DiGraph, NodeIndex};
use syn::visit::Visit;
use syn::{Item, UseTree, Visibility};

use super::source::Crate;

type ModulePath = Vec<String>;

/// Cycles of files of one crate, by path.
pub fn cycles(krate: &Crate) -> Vec<Vec<String>> {
    let needs = needs(krate);
    let names = krate.files.iter().map(|f| f.path.display().to_string());
    circles(&names.collect::<Vec<_>>(), &needs)
}

/// Cycles of top-level modules of one crate, by name. A folder with all its content is one module.
pub fn module_cycles(krate: &Crate) -> Vec<Vec<String>> {
    let of_file = |ix: usize| krate.files[ix].module.first();
    let names: BTreeSet<String> = (0..krate.files.len())
        .filter_map(of_file)
        .cloned()
        .collect();
    let names: Vec<String> = names.into_iter().collect();
    let position = |ix: usize| names.binary_search(of_file(ix)?).ok();
    let mut needed_by_module = vec![BTreeSet::new(); names.len()];
    for (ix, needed) in needs(krate).into_iter().enumerate() {
        if let Some(module) = position(ix) {
            needed_by_module[module].extend(needed.into_iter().filter_map(position));
        }
    }
    circles(&names, &needed_by_module)
}

fn needs(krate: &Crate) -> Vec<BTreeSet<usize>> {
    let modules = Modules::of(krate);
    let files = krate.files.iter();
    let needs = files.map(|file| {
        let mut needs = Needs {
            modules: &modules,
            module: file.module.clone(),
            files: BTreeSet::new(),
        };
        needs.visit_file(&file.syntax);
        needs.files
    });
    needs.collect()
}

/// Cycles in a dependency graph. Dependencies are positions in `names`.
fn circles(names: &[String], needs: &[BTreeSet<usize>]) -> Vec<Vec<String>> {
    let mut graph: DiGraph<usize, ()> = DiGraph::new();
    let nodes: Vec<NodeIndex> = (0..names.len()).map(|ix| graph.add_node(ix)).collect();
    for (ix, needed) in needs.iter().enumerate() {
        for &needed in needed.iter().filter(|needed| **needed != ix) {
            graph.add_edge(nodes[ix], nodes[needed], ());
        }
    }
    let mut circles: Vec<Vec<String>> = petgraph::algo::tarjan_scc(&graph)
        .into_iter()
        .filter(|circle| circle.len() > 1)
        .map(|circle| {
            let mut names: Vec<String> = circle
                .into_iter()
                .map(|node| names[graph[node]].clone())
                .collect();
            names.sort();
            names
        })
        .collect();
    circles.sort();
    circles
}

/// A module: its file, definitions and re-exports.
#[derive(Debug, Default)]
struct Module {
    file: usize,
    defines: BTreeSet<String>,
    /// Re-exported name -> path.
    passes_on: BTreeMap<String, Vec<String>>,
    /// Paths of glob re-exports.
    passes_on_all: Vec<Vec<String>>,
}

struct Modules(BTreeMap<ModulePath, Module>);

impl Modules {
    fn of(krate: &Crate) -> Self {
        let mut modules = Self(BTreeMap::new());
        for (ix, file) in krate.files.iter().enumerate() {
            modules.add(ix, &file.module, &file.syntax.items);
        }
        modules
    }

    fn add(&mut self, file: usize, path: &[String], items: &[Item]) {
        let mut module = Module {
            file,
            ..Module::default()
        };
        for item in items {
            match item {
                Item::Mod(inner) => {
                    if let Some((_, items)) = &inner.content {
                        let path = [path, &[inner.ident.to_string()]].concat();
                        self.add(file, &path, items);
                    }
                }
                Item::Use(import) if !matches!(import.vis, Visibility::Inherited) => {
                    for leaf in leaves(&import.tree) {
                        match leaf.name {
                            Some(name) => drop(module.passes_on.insert(name, leaf.path)),
                            None => module.passes_on_all.push(leaf.path),
                        }
                    }
                }
                item => module.defines.extend(name_of(item)),
            }
        }
        self.0.insert(path.to_vec(), module);
    }

    /// The file that defines a path, as seen from a module; `None` for other crates.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<usize> {
        let (mut at, mut rest): (ModulePath, &[String]) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.to_vec(), &path[1..]),
            "super" => (from.split_last()?.1.to_vec(), &path[1..]),
            first => {
                let child = [from, &[first.to_owned()]].concat();
                self.0
                    .contains_key(&child)
                    .then_some((from.to_vec(), path))?
            }
        };
        while let Some((next, after)) = rest.split_first() {
            if next == "super" {
                at.pop()?;
            } else if self
                .0
                .contains_key(&[&at[..], std::slice::from_ref(next)].concat())
            {
                at.push(next.clone());
            } else {
                break;
            }
            rest = after;
        }
        let module = self.0.get(&at)?;
        let Some(name) = rest.first().filter(|_| depth < 16) else {
            return Some(module.file);
        };
        if module.defines.contains(name) {
            return Some(module.file);
        }
        if let Some(target) = module.passes_on.get(name) {
            return self.resolve(&at, target, depth + 1);
        }
        let defined_by = |target: &Vec<String>| {
            let full = [&target[..], std::slice::from_ref(name)].concat();
            let file = self.resolve(&at, &full, depth + 1)?;
            let defines = |m: &Module| m.file == file && m.defines.contains(name);
            self.0.values().any(defines).then_some(file)
        };
        let passed_on = module.passes_on_all.iter().find_map(defined_by);
        passed_on.or(Some(module.file))
    }
}

/// One imported name; `None`: a glob import.
struct Leaf {
    name: Option<String>,
    path: Vec<String>,
}

fn leaves(tree: &UseTree) -> Vec<Leaf> {
    fn walk(tree: &UseTree, prefix: &[String], out: &mut Vec<Leaf>) {
        match tree {
            UseTree::Path(path) => {
                let prefix = [prefix, &[path.ident.to_string()]].concat();
                walk(&path.tree, &prefix, out);
            }
            UseTree::Name(name) if name.ident == "self" => out.push(Leaf {
                name: prefix.last().cloned(),
                path: prefix.to_vec(),
            }),
            UseTree::Name(name) => out.push(Leaf {
                name: Some(name.ident.to_string()),
                path: [prefix, &[name.ident.to_string()]].concat(),
            }),
            UseTree::Rename(rename) => out.push(Leaf {
                name: Some(rename.rename.to_string()),
                path: [prefix, &[rename.ident.to_string()]].concat(),
            }),
            UseTree::Glob(_) => out.push(Leaf {
                name: None,
                path: prefix.to_vec(),
            }),
            UseTree::Group(group) => group.items.iter().for_each(|t| walk(t, prefix, out)),
        }
    }
    let mut out = Vec::new();
    walk(tree, &[], &mut out);
    out
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(i) => &i.ident,
        Item::Enum(i) => &i.ident,
        Item::Fn(i) => &i.sig.ident,
        Item::Static(i) => &i.ident,
        Item::Struct(i) => &i.ident,
        Item::Trait(i) => &i.ident,
        Item::Type(i) => &i.ident,
        Item::Macro(i) => i.ident.as_ref()?,
        _ => return None,
    };
    Some(ident.to_string())
}

struct Needs<'m> {
    modules: &'m Modules,
    module: ModulePath,
    files: BTreeSet<usize>,
}

impl<'ast> Visit<'ast> for Needs<'_> {
    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        if matches!(import.vis, Visibility::Inherited) {
            for leaf in leaves(&import.tree) {
                self.files
                    .extend(self.modules.resolve(&self.module, &leaf.path, 0));
            }
        }
    }

    fn visit_item_mod(&mut self, inner: &'ast syn::ItemMod) {
        self.module.push(inner.ident.to_string());
        syn::visit::visit_item_mod(self, inner);
        self.module.pop();
    }

    /// `pub(in crate::preempt)` restricts visibility; it is no dependency.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if names.len() > 1 {
            self.files
                .extend(self.modules.resolve(&self.module, &names, 0));
        }
        syn::visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structure::source::SourceFile;

    fn krate(files: &[(&str, &str)]) -> Crate {
        let file = |(path, text): &(&str, &str)| {
            let stem = path.trim_end_matches(".rs").trim_end_matches("mod");
            let names = stem.split('/').filter(|n| !n.is_empty() && *n != "lib");
            SourceFile {
                path: path.into(),
                module: names.map(str::to_owned).collect(),
                syntax: syn::parse_file(text).unwrap(),
                length: text.lines().count(),
                comment_words: 0,
            }
        };
        Crate {
            name: "k".into(),
            files: files.iter().map(file).collect(),
        }
    }

    #[test]
    fn a_circle_is_found_through_re_exports_and_paths_without_use() {
        let found = cycles(&krate(&[
            ("lib.rs", "mod plan; mod act; pub use plan::Plan;"),
            ("plan.rs", "pub struct Plan; fn f() { crate::act::send() }"),
            ("act.rs", "use crate::Plan; pub fn send() {}"),
        ]));
        assert_eq!(found, [["act.rs", "plan.rs"]]);
    }

    #[test]
    fn folders_are_in_a_circle_where_no_files_are() {
        let krate = krate(&[
            ("lib.rs", "mod plan; mod act;"),
            ("plan/mod.rs", "pub mod decide; pub mod word;"),
            ("plan/decide.rs", "use crate::act::Request;"),
            ("plan/word.rs", "pub struct Word;"),
            ("act.rs", "use crate::plan::word::Word; pub struct Request;"),
        ]);
        assert_eq!(cycles(&krate), Vec::<Vec<String>>::new());
        assert_eq!(module_cycles(&krate), [["act", "plan"]]);
    }

    #[test]
    fn a_folder_that_only_passes_names_on_closes_no_circle() {
        let found = cycles(&krate(&[
            ("lib.rs", "pub mod a;"),
            (
                "a/mod.rs",
                "mod b; mod c; pub use b::B; pub use self::c::*;",
            ),
            ("a/b.rs", "use super::C; pub struct B(C);"),
            ("a/c.rs", "pub struct C;"),
        ]));
        assert_eq!(found, Vec::<Vec<String>>::new());
    }

    #[test]
    fn a_folder_that_defines_what_its_files_need_and_needs_them_is_a_circle() {
        let found = cycles(&krate(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod b; use b::f; pub struct A; fn g() { f() }"),
            ("a/b.rs", "use super::A; pub fn f() {}"),
        ]));
        assert_eq!(found, [["a/b.rs", "a/mod.rs"]]);
    }
}

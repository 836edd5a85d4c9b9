//! Size and density of code.

use std::collections::BTreeSet;

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::Visit;

use super::source::Crate;

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    /// Lines from `fn` to the closing brace.
    pub lines: usize,
    /// Tokens of signature and body; a pair of brackets counts as two.
    pub tokens: usize,
    /// Parameters, `self` included.
    pub parameters: usize,
    /// File and name.
    pub name: String,
}

/// Measures of a crate, without comments and documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// Lines with a token.
    pub lines: usize,
    pub tokens: usize,
    pub files: usize,
    /// Files of fewer than 60 lines.
    pub short_files: usize,
    pub comment_words: usize,
    /// Structs, enums, traits and type aliases that are `pub`.
    pub public_types: usize,
    pub closures: usize,
    /// Closures bound to a name: `let x = |..| ..`.
    pub named_closures: usize,
    /// Length in lines and path of the longest file.
    pub longest_file: (usize, String),
    /// All functions, in file order.
    pub functions: Vec<Function>,
}

impl Measures {
    pub fn tokens_per_line(&self) -> f64 {
        self.tokens as f64 / self.lines.max(1) as f64
    }

    pub fn closures_per_100_lines(&self) -> f64 {
        100.0 * self.closures as f64 / self.lines.max(1) as f64
    }

    /// The function with the most lines.
    pub fn longest_function(&self) -> Function {
        self.functions.iter().max().cloned().unwrap_or_default()
    }

    /// Functions with six or more parameters.
    pub fn many_parameters(&self) -> usize {
        self.functions.iter().filter(|f| f.parameters >= 6).count()
    }

    /// Adds the measures of another crate.
    pub fn add(&mut self, other: &Self) {
        self.lines += other.lines;
        self.tokens += other.tokens;
        self.files += other.files;
        self.short_files += other.short_files;
        self.comment_words += other.comment_words;
        self.public_types += other.public_types;
        self.closures += other.closures;
        self.named_closures += other.named_closures;
        self.longest_file = self.longest_file.clone().max(other.longest_file.clone());
        self.functions.extend(other.functions.iter().cloned());
    }
}

pub fn measure(krate: &Crate) -> Measures {
    let mut measures = Measures::default();
    for file in &krate.files {
        measures.files += 1;
        measures.short_files += usize::from(file.length < 60);
        measures.comment_words += file.comment_words;
        let path = file.path.display().to_string();
        let mut counter = Counter {
            file: &path,
            measures: &mut measures,
        };
        counter.visit_file(&file.syntax);
        let mut lines = BTreeSet::new();
        measures.tokens += count(file.syntax.to_token_stream(), Some(&mut lines));
        measures.lines += lines.len();
        let last = lines.last().copied().unwrap_or_default();
        measures.longest_file = measures.longest_file.clone().max((last, path));
    }
    measures
}

struct Counter<'m> {
    file: &'m str,
    measures: &'m mut Measures,
}

impl Counter<'_> {
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.fn_token.span().start().line;
        let last = block.span().end().line;
        self.measures.functions.push(Function {
            lines: last + 1 - first,
            tokens: count(signature.to_token_stream(), None) + count(block.to_token_stream(), None),
            parameters: signature.inputs.len(),
            name: format!("{}:{}", self.file, signature.ident),
        });
    }
}

impl<'ast> Visit<'ast> for Counter<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let visibility = match item {
            syn::Item::Struct(i) => Some(&i.vis),
            syn::Item::Enum(i) => Some(&i.vis),
            syn::Item::Trait(i) => Some(&i.vis),
            syn::Item::Type(i) => Some(&i.vis),
            _ => None,
        };
        let public = matches!(visibility, Some(syn::Visibility::Public(_)));
        self.measures.public_types += usize::from(public);
        syn::visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig, &function.block);
        syn::visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.function(&function.sig, &function.block);
        syn::visit::visit_impl_item_fn(self, function);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let named = matches!(&local.pat, syn::Pat::Ident(_));
        let closure = local
            .init
            .as_ref()
            .is_some_and(|i| matches!(*i.expr, syn::Expr::Closure(_)));
        self.measures.named_closures += usize::from(named && closure);
        syn::visit::visit_local(self, local);
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        self.measures.closures += 1;
        syn::visit::visit_expr_closure(self, closure);
    }
}

/// Counts tokens without documentation, and records their lines.
fn count(stream: TokenStream, mut lines: Option<&mut BTreeSet<usize>>) -> usize {
    let mut total = 0;
    let mut tokens = stream.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if matches!(&token, TokenTree::Punct(p) if p.as_char() == '#') {
            tokens.next_if(|t| matches!(t, TokenTree::Punct(p) if p.as_char() == '!'));
            if tokens.next_if(is_documentation).is_some() {
                continue;
            }
        }
        match token {
            TokenTree::Group(group) => {
                note(&mut lines, group.span_open());
                note(&mut lines, group.span_close());
                total += 2 + count(group.stream(), lines.as_deref_mut());
            }
            leaf => {
                note(&mut lines, leaf.span());
                total += 1;
            }
        }
    }
    total
}

fn note(lines: &mut Option<&mut BTreeSet<usize>>, span: Span) {
    if let Some(lines) = lines {
        lines.extend(span.start().line..=span.end().line);
    }
}

fn is_documentation(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else {
        return false;
    };
    let first = group.stream().into_iter().next();
    matches!(first, Some(TokenTree::Ident(name)) if name == "doc")
}

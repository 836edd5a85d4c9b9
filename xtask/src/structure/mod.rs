//! Structure of the product's sources, from their syntax: import cycles between files and modules
//! of a crate, duplicate public type names, and density.
//!
//! The product is `api` and the crates below `operator/`, without code under `#[cfg(test)]`.

mod imports;
mod measures;
mod names;
mod source;

pub use imports::{cycles, module_cycles};
pub use measures::{Function, Measures, measure};
pub use names::{duplicate_types, long_function_names};
pub use source::{Crate, load};

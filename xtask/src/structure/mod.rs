//! The structure of the product's sources, read from their syntax: import cycles between the files
//! and between the modules of a crate, public type names that occur twice, and how dense the code is.
//!
//! The product is `api` and the crates below `operator/`. Code under `#[cfg(test)]` is left out.

mod imports;
mod measures;
mod names;
mod source;

pub use imports::{cycles, module_cycles};
pub use measures::{Function, Measures, measure};
pub use names::duplicate_types;
pub use source::{Crate, load};

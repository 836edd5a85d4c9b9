//! Conversions of the examples, and what they mean.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

mod converted;
mod converting;

//! Quantities, and what all objects share.

pub(crate) mod metadata;
pub mod quantity;
pub(crate) mod shared;
pub mod unreadable;

//! Trimmed nodes, their classes and their dimensions.

pub mod dims;
pub mod node;
pub mod node_class;

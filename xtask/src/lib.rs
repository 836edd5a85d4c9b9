//! What the repository checks about itself beside what clippy sees, and what it builds besides
//! programs.

pub mod dashboards;
pub mod image;
pub mod structure;

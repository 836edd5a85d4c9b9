//! What the repository checks about itself beside what clippy sees, and what it builds besides
//! programs.

pub mod alerts;
pub mod bundle;
pub mod custom_resource_state;
pub mod dashboards;
pub mod image;
pub mod links;
pub mod metric;
pub mod metrics;
pub mod plugin;
pub mod query;
pub mod structure;

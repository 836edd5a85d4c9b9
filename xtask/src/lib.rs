//! Checks of the repository beyond clippy, and builds of artifacts beyond programs.

pub mod bundle;
pub mod chart;
mod configuration;
mod cri;
pub mod generate;
pub mod image;
pub mod links;
pub mod metrics;
pub mod openvex;
pub mod plugin;
pub mod query;
mod reference;
pub mod release;
pub mod structure;
mod vocabulary;

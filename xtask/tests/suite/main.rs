//! Checks of the repository's files: sources, manifests, pages and generated files.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

mod agent_limits;
mod agent_manifest;
mod arrows;
mod bundle;
mod chart;
mod dashboards;
mod generated;
mod images;
mod links;
mod manager_manifest;
mod observability;
mod olm_page;
mod release;
mod site;
mod structure;

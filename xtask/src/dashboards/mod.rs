//! Grafana dashboards as JSON, from one table of panels with their queries and descriptions.

mod agents;
mod fleet;
mod manager;
mod panel;
mod workload;

use std::path::PathBuf;

pub use panel::{Choice, Dashboard, Kind, Panel, SCRAPED, Variable};
pub use workload::SOURCES;

const FOLDER: &str = "config/components/dashboards";
pub const ALL: [Dashboard; 4] = [
    fleet::FLEET,
    workload::WORKLOAD,
    manager::MANAGER,
    agents::AGENTS,
];

/// Path from the root and content of every dashboard.
pub fn files() -> Vec<(PathBuf, String)> {
    ALL.iter()
        .map(|d| {
            let path = PathBuf::from(format!("{FOLDER}/{}.json", d.name));
            (path, format!("{:#}\n", d.json()))
        })
        .collect()
}

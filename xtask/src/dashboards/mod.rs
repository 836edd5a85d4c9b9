//! Grafana dashboards as JSON, from one table of panels: what is asked of Prometheus, and what the
//! answer means.

mod fleet;
mod manager;
mod panel;

use std::path::PathBuf;

pub use panel::{Dashboard, Kind, Panel};

/// Where the dashboards lie.
const FOLDER: &str = "config/components/dashboards";
/// All dashboards.
pub const ALL: [Dashboard; 2] = [fleet::FLEET, manager::MANAGER];

/// Path from the root and content of every dashboard.
pub fn files() -> Vec<(PathBuf, String)> {
    ALL.iter()
        .map(|d| {
            let path = PathBuf::from(format!("{FOLDER}/{}.json", d.name));
            (path, format!("{:#}\n", d.json()))
        })
        .collect()
}

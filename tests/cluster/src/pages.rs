//! Pages that draw the dashboards from the files for Grafana, for users without Grafana. They need
//! uPlot from npm.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cluster::repository;
use crate::process::run;

/// The dashboards with data from managers. The dashboard of agents needs real agents, which hollow
/// nodes lack.
pub const SHOWN: [&str; 3] = ["fleet", "workload", "manager"];
/// File name of the page, in a folder per dashboard.
pub const PAGE: &str = "page.html";
/// Limit for npm and its registry.
const FETCH: Duration = Duration::from_mins(2);
/// Replaces `$__rate_interval` of Grafana. Longer than Grafana's value, so that rare events are
/// visible.
const RATE_INTERVAL: &str = "1m";
/// Files of a page.
const SOURCES: [&str; 3] = [PAGE, "page.css", "page.js"];
const UPLOT: [&str; 2] = ["uPlot.iife.min.js", "uPlot.min.css"];

/// Content of a page.
#[derive(Clone, Debug)]
pub struct Picture<'a> {
    /// The dashboard for Grafana.
    pub dashboard: &'a Value,
    /// Address of Prometheus.
    pub prometheus: &'a str,
    /// Start of the time range, in seconds since the epoch.
    pub since: u64,
    /// Values of the variables. The URL of a page can set other values (`?namespace=ml&workload=llama`).
    pub chosen: Value,
}

/// The folder of uPlot, which is downloaded once into the cache.
pub async fn uplot() -> Result<PathBuf> {
    let script = repository().join("tests/pictures/uplot.sh");
    let out = run(&script, &[], &[], FETCH).await?;
    Ok(PathBuf::from(out.trim()))
}

/// A dashboard by name.
pub fn dashboard(name: &str) -> Result<Value> {
    let path = repository().join(format!("config/components/dashboards/{name}.json"));
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_str(&text)?)
}

/// All values of every variable.
pub fn everything(dashboard: &Value) -> Value {
    let list = dashboard["templating"]["list"].as_array();
    let variables = list.into_iter().flatten().filter_map(|variable| {
        let name = variable["name"].as_str()?;
        // The address of the data source is known.
        (variable["type"] == "query").then(|| (name.to_owned(), json!(".*")))
    });
    Value::Object(variables.collect())
}

/// Writes the page of a picture into a folder.
pub fn write(folder: &Path, uplot: &Path, picture: &Picture<'_>) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let sources = repository().join("tests/pictures");
    let files = SOURCES.map(|f| sources.join(f)).into_iter();
    for file in files.chain(UPLOT.map(|f| uplot.join(f))) {
        let target = folder.join(file.file_name().context("a name")?);
        std::fs::copy(&file, target).with_context(|| file.display().to_string())?;
    }
    let json = json!({
        "dashboard": picture.dashboard,
        "prometheus": picture.prometheus,
        "since": picture.since,
        "rateInterval": RATE_INTERVAL,
        "chosen": picture.chosen,
    });
    std::fs::write(
        folder.join("picture.js"),
        format!("window.PICTURE = {json};\n"),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_that_a_page_does_not_choose_is_chosen_for_it() {
        for name in SHOWN {
            let dashboard = dashboard(name).unwrap();
            let chosen = everything(&dashboard);
            let chosen = chosen.as_object().unwrap();
            assert_eq!(chosen["cluster"], ".*", "{name}");
            let variables = dashboard["templating"]["list"].as_array().unwrap();
            assert_eq!(
                chosen.len() + 1,
                variables.len(),
                "{name}: all but the data source"
            );
        }
    }
}

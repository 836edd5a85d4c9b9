//! Has a browser draw the dashboards, from the files that Grafana imports.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_cluster::cluster::repository;
use lockstep_cluster::process::run;
use serde_json::{Value, json};
use xtask::dashboards;

use crate::story::SHOWN;

/// Longest time for one picture.
const PATIENCE: Duration = Duration::from_mins(2);
/// Pixels of a picture from left to right.
const WIDTH: u64 = 1400;
/// Pixels of a row of Grafana's grid, and of what is above all rows; `page.js` has the same.
const ROW: u64 = 30;
const HEAD: u64 = 62;
/// What Grafana would make of `$__rate_interval`, longer, so that rare events show as more than
/// dots.
const RATE_INTERVAL: &str = "1m";
/// What the page consists of.
const PAGE: [&str; 3] = ["page.html", "page.css", "page.js"];
const UPLOT: [&str; 2] = ["uPlot.iife.min.js", "uPlot.min.css"];

/// Who draws, and from what.
pub struct Artist {
    /// The browser.
    pub chromium: PathBuf,
    /// Folder of uPlot.
    pub uplot: PathBuf,
    /// Folder for pages.
    pub folder: PathBuf,
    /// Address of Prometheus.
    pub prometheus: String,
    /// How much of the past to show.
    pub seconds: u64,
}

impl Artist {
    /// Draws every dashboard into a folder.
    pub async fn draw_all(&self, out: &Path) -> Result<()> {
        for (path, text) in dashboards::files() {
            let name = path
                .file_stem()
                .context("a name")?
                .to_string_lossy()
                .into_owned();
            let dashboard: Value = serde_json::from_str(&text)?;
            self.draw(&name, &dashboard, &out.join(format!("{name}.png")))
                .await
                .with_context(|| format!("the picture of {name}"))?;
        }
        Ok(())
    }

    async fn draw(&self, name: &str, dashboard: &Value, out: &Path) -> Result<()> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder)?;
        let sources = repository().join("tests/pictures");
        let files = PAGE.map(|f| sources.join(f)).into_iter();
        for file in files.chain(UPLOT.map(|f| self.uplot.join(f))) {
            let target = folder.join(file.file_name().context("a name")?);
            std::fs::copy(&file, target).with_context(|| file.display().to_string())?;
        }
        let picture = json!({
            "dashboard": dashboard,
            "prometheus": self.prometheus,
            "seconds": self.seconds,
            "rateInterval": RATE_INTERVAL,
            "chosen": chosen(dashboard),
        });
        std::fs::write(
            folder.join("picture.js"),
            format!("window.PICTURE = {picture};\n"),
        )?;
        let page = format!("file://{}", folder.join("page.html").display());
        let size = format!("--window-size={WIDTH},{}", height(dashboard));
        let profile = format!("--user-data-dir={}", folder.join("profile").display());
        let common = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            "--virtual-time-budget=30000",
            &size,
            &profile,
        ];
        let shot = format!("--screenshot={}", out.display());
        run(
            &self.chromium,
            &[&common[..], &[&shot, &page]].concat(),
            &[],
            PATIENCE,
        )
        .await?;
        // What is on the page in words: a panel without data is no picture.
        let text = run(
            &self.chromium,
            &[&common[..], &["--dump-dom", &page]].concat(),
            &[],
            PATIENCE,
        )
        .await?;
        ensure!(
            text.contains("<title>drawn</title>"),
            "it is not drawn: {text}"
        );
        let empty = text
            .split("<section")
            .filter(|section| section.contains("no data"));
        let empty: Vec<&str> = empty
            .filter_map(|section| section.split("<h2>").nth(1)?.split("</h2>").next())
            .collect();
        ensure!(empty.is_empty(), "panels without data: {empty:?}");
        let name = out.display().to_string();
        // A few colours are all that it has.
        let fewer = ["--force", "--ext=.png", "--strip", "64", &name];
        run(Path::new("pngquant"), &fewer, &[], PATIENCE).await?;
        println!("{name}");
        Ok(())
    }
}

/// What the reader has chosen, by variable.
fn chosen(dashboard: &Value) -> Value {
    let list = dashboard["templating"]["list"].as_array();
    let names = list
        .into_iter()
        .flatten()
        .filter_map(|v| v["name"].as_str());
    let of = |name: &str| match name {
        "source" => Some(dashboards::SOURCES[0]),
        "namespace" if dashboard["uid"] == "lockstep-workload" => Some(SHOWN.0),
        "workload" => Some(SHOWN.1),
        "datasource" => None,
        _ => Some(".*"),
    };
    let chosen = names.filter_map(|name| Some((name.to_owned(), json!(of(name)?))));
    Value::Object(chosen.collect())
}

fn height(dashboard: &Value) -> u64 {
    let panels = dashboard["panels"].as_array();
    let bottoms = panels.into_iter().flatten().map(|panel| {
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap_or_default();
        at("y") + at("h")
    });
    HEAD + ROW * bottoms.max().unwrap_or_default()
}

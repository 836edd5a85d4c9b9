//! Draws the dashboards with a browser, from the files for Grafana.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_cluster::pages::{self, Picture};
use lockstep_cluster::process::run;
use serde_json::{Value, json};

use crate::story::SHOWN;

/// Limit for a picture.
const PATIENCE: Duration = Duration::from_mins(2);
/// Width of a picture in pixels.
const WIDTH: u64 = 1400;
/// Height in pixels of a row of Grafana's grid, and of the space above all rows. `page.js` has the
/// same values.
const ROW: u64 = 30;
const HEAD: u64 = 62;
/// Programs and inputs for drawing.
#[derive(Clone)]
pub struct Artist {
    /// The browser.
    pub chromium: PathBuf,
    /// Folder of uPlot.
    pub uplot: PathBuf,
    /// Folder for pages.
    pub folder: PathBuf,
    /// Address of Prometheus.
    pub prometheus: String,
    /// Start of the time range, in seconds since the epoch.
    pub since: u64,
}

impl Artist {
    /// Draws all dashboards about managers into a folder.
    pub async fn draw_all(&self, out: &Path) -> Result<()> {
        for name in pages::SHOWN {
            self.draw(name, out).await?;
        }
        Ok(())
    }

    /// Draws a dashboard into a folder.
    pub async fn draw(&self, name: &str, out: &Path) -> Result<()> {
        let dashboard = pages::dashboard(name)?;
        self.draw_to(name, &dashboard, &out.join(format!("{name}.png")))
            .await
            .with_context(|| format!("the picture of {name}"))
    }

    async fn draw_to(&self, name: &str, dashboard: &Value, out: &Path) -> Result<()> {
        let folder = self.folder.join(name);
        let picture = Picture {
            dashboard,
            prometheus: &self.prometheus,
            since: self.since,
            chosen: chosen(dashboard),
        };
        pages::write(&folder, &self.uplot, &picture)?;
        let page = format!("file://{}", folder.join(pages::PAGE).display());
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
        // Text of the page. A panel without data is an error.
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
        // The picture has only few colours.
        let fewer = ["--force", "--ext=.png", "--strip", "64", &name];
        run(Path::new("pngquant"), &fewer, &[], PATIENCE).await?;
        println!("{name}");
        Ok(())
    }
}

/// Values of the dashboard's variables: all, or one workload.
fn chosen(dashboard: &Value) -> Value {
    let mut chosen = pages::everything(dashboard);
    if chosen.get("workload").is_some() {
        (chosen["namespace"], chosen["workload"]) = (json!(SHOWN.0), json!(SHOWN.1));
    }
    chosen
}

fn height(dashboard: &Value) -> u64 {
    let panels = dashboard["panels"].as_array();
    let bottoms = panels.into_iter().flatten().map(|panel| {
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap_or_default();
        at("y") + at("h")
    });
    HEAD + ROW * bottoms.max().unwrap_or_default()
}

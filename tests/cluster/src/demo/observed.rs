//! Data of Prometheus about the demonstration.

use std::path::Path;

use anyhow::Result;
use lockstep_cluster::Cluster;
use lockstep_cluster::cluster::Manager;
use lockstep_cluster::eventually;
use lockstep_cluster::pages::{self, Picture};
use lockstep_cluster::prometheus::{Hold, Prometheus};
use lockstep_cluster::scenario::PATIENCE;

/// A Prometheus that scrapes the managers from the start, and pages that draw the dashboards from
/// its data. Ends with the demonstration.
pub struct Observed {
    prometheus: Prometheus,
    /// Why the pages are missing, if so.
    undrawn: Option<String>,
}

impl Observed {
    pub async fn start(program: &Path, cluster: &Cluster, managers: &[Manager]) -> Result<Self> {
        let targets: Vec<&str> = managers.iter().map(|m| m.metrics.as_str()).collect();
        let prometheus = Prometheus::start(program, cluster, &targets, Hold::Shipped).await?;
        let since = eventually("the first scrape", PATIENCE, async || {
            prometheus.begin().await
        })
        .await?;
        // uPlot comes from npm, which the demonstration does not require.
        let drawn = draw(&prometheus, since).await;
        let undrawn = drawn.err().map(|error| format!("{error:#}"));
        Ok(Self {
            prometheus,
            undrawn,
        })
    }

    /// Prints the addresses.
    pub fn tell(&self) {
        let address = &self.prometheus.address;
        println!("\nIn a browser:");
        println!("  http://{address}/  Prometheus, with the shipped alerts");
        if let Some(why) = &self.undrawn {
            let line = why.lines().next().unwrap_or_default();
            println!("  no dashboards, which are drawn with uPlot from npm: {line}");
            return;
        }
        for name in pages::SHOWN {
            println!("  http://{address}/user/{name}/{}", pages::PAGE);
        }
        println!("  (of one workload: ?namespace=NAMESPACE&workload=NAME)");
    }
}

/// Makes Prometheus serve the pages.
async fn draw(prometheus: &Prometheus, since: u64) -> Result<()> {
    let uplot = pages::uplot().await?;
    for name in pages::SHOWN {
        let dashboard = pages::dashboard(name)?;
        let picture = Picture {
            dashboard: &dashboard,
            prometheus: &prometheus.address,
            since,
            chosen: pages::everything(&dashboard),
        };
        pages::write(&prometheus.pages.join(name), &uplot, &picture)?;
    }
    Ok(())
}

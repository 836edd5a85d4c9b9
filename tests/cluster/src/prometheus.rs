//! A Prometheus that scrapes managers or agents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{Cluster, repository};
use crate::http;
use crate::process::{Launch, Process, free_port, run};
use crate::wait::eventually;

/// The first build on a machine takes minutes.
const BUILD: Duration = Duration::from_mins(30);
const START: Duration = Duration::from_mins(1);
/// The shipped rules.
const RULES: &str = "config/components/prometheus/prometheus_rule.yaml";

/// A running Prometheus.
pub struct Prometheus {
    /// Address of its HTTP endpoint.
    pub address: String,
    /// Folder of additional pages that it serves.
    pub pages: PathBuf,
    _process: Process,
}

/// A series of an answer: its labels and its current value.
pub type Sample = (BTreeMap<String, String>, f64);

/// The `for` of alerts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// As shipped: minutes.
    Shipped,
    /// Seconds, for tests that wait for alerts.
    Seconds,
}

/// The program from the PATH, or else built once into the cache.
pub async fn built() -> Result<PathBuf> {
    let folder = script(&[]).await?;
    Ok(folder
        .context("build.sh prints a folder")?
        .join("prometheus"))
}

/// The program, if the PATH contains a recent version.
pub async fn found() -> Result<Option<PathBuf>> {
    Ok(script(&["--found"]).await?.map(|f| f.join("prometheus")))
}

async fn script(args: &[&str]) -> Result<Option<PathBuf>> {
    let script = repository().join("tests/prometheus/build.sh");
    let out = run(&script, args, &[], BUILD).await?;
    Ok(out.lines().last().map(PathBuf::from))
}

/// The groups of the shipped rules.
fn rules(hold: Hold) -> Result<Value> {
    let text = std::fs::read_to_string(repository().join(RULES))?;
    let object: Value = serde_saphyr::from_str(&text)?;
    let mut groups = object["spec"]["groups"].clone();
    for group in groups.as_array_mut().context("groups of rules")? {
        for rule in group["rules"].as_array_mut().into_iter().flatten() {
            if hold == Hold::Seconds && rule.get("alert").is_some() {
                rule["for"] = json!("3s");
            }
        }
    }
    Ok(json!({"groups": groups}))
}

impl Prometheus {
    /// Starts a Prometheus with the shipped rules that scrapes managers or agents at these
    /// addresses every second. It serves files in [`Prometheus::pages`] at `/user/`.
    pub async fn start(
        program: &Path,
        cluster: &Cluster,
        targets: &[&str],
        hold: Hold,
    ) -> Result<Self> {
        let folder = cluster.folder().join("prometheus");
        let pages = folder.join("pages");
        std::fs::create_dir_all(&pages)?;
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.json"],
            "scrape_configs": [
                {"job_name": "lockstep", "honor_labels": true, "static_configs": [{"targets": targets}]},
                // A ServiceMonitor gives all its endpoints the same job.
                {"job_name": "workloads", "metrics_path": "/metrics/workloads", "honor_labels": true,
                    "static_configs": [{"targets": targets}],
                    "relabel_configs": [{"target_label": "job", "replacement": "lockstep"}]},
            ],
        });
        for (name, content) in [("prometheus.yml", config), ("rules.json", rules(hold)?)] {
            std::fs::write(folder.join(name), content.to_string())?;
        }
        let address = format!("127.0.0.1:{}", free_port()?);
        let launch = Launch {
            name: "prometheus".into(),
            program: program.to_owned(),
            args: vec![
                format!("--config.file={}", folder.join("prometheus.yml").display()),
                format!("--storage.tsdb.path={}", folder.join("data").display()),
                format!("--web.user-assets={}", pages.display()),
                format!("--web.listen-address={address}"),
            ],
            env: None,
        };
        let process = Process::start(&launch, cluster.folder())?;
        eventually("Prometheus to be ready", START, async || {
            http::get(&address, "/-/ready").await
        })
        .await?;
        Ok(Self {
            address,
            pages,
            _process: process,
        })
    }

    /// Current result of a query.
    pub async fn query(&self, query: &str) -> Result<Vec<Sample>> {
        let answer = self
            .get(&format!("/api/v1/query?query={}", encoded(query)))
            .await
            .with_context(|| query.to_owned())?;
        let result = answer["data"]["result"].as_array().context("a vector")?;
        result
            .iter()
            .map(|sample| {
                let value = sample["value"][1].as_str().context("a value")?;
                Ok((labels(&sample["metric"])?, value.parse()?))
            })
            .collect()
    }

    /// The single number of a query's result.
    pub async fn number(&self, query: &str) -> Result<f64> {
        let samples = self.query(query).await?;
        ensure!(samples.len() == 1, "{query}: {samples:?}");
        Ok(samples[0].1)
    }

    /// Time of the last manager's start, in seconds since the epoch. Earlier data does not exist.
    pub async fn begin(&self) -> Result<u64> {
        Ok(self.number("max(process_start_time_seconds)").await? as u64)
    }

    /// All series that the managers export.
    pub async fn series(&self) -> Result<Vec<BTreeMap<String, String>>> {
        let selector = encoded(r#"{job="lockstep"}"#);
        let answer = self
            .get(&format!("/api/v1/series?match[]={selector}"))
            .await?;
        let data = answer["data"].as_array().context("series")?;
        data.iter().map(labels).collect()
    }

    /// Firing alerts by name, with their annotations.
    pub async fn firing(&self) -> Result<BTreeMap<String, Value>> {
        let answer = self.get("/api/v1/alerts").await?;
        let all = answer["data"]["alerts"].as_array().context("alerts")?;
        let firing = all.iter().filter(|a| a["state"] == "firing");
        firing
            .map(|a| {
                let name = a["labels"]["alertname"].as_str().context("a name")?;
                Ok((name.to_owned(), a["annotations"].clone()))
            })
            .collect()
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let answer: Value = serde_json::from_str(&http::get(&self.address, path).await?)?;
        ensure!(answer["status"] == "success", "{answer}");
        Ok(answer)
    }
}

fn labels(of: &Value) -> Result<BTreeMap<String, String>> {
    Ok(serde_json::from_value(of.clone())?)
}

/// Encodes text for a URL.
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

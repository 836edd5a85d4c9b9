//! Helm on a cluster, and the chart.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::cluster::{Cluster, built, repository};
use crate::install::Method;
use crate::process::run;

/// Name of the release.
pub const RELEASE: &str = "lockstep";
const HELM: Duration = Duration::from_mins(2);

/// Folder of the chart.
pub fn chart() -> PathBuf {
    repository().join("charts/lockstep")
}

impl Cluster {
    /// Runs helm as the administrator and returns its standard output.
    pub async fn helm(&self, args: &[&str]) -> Result<String> {
        let helm = built("helm", &[], &[]).await?;
        let kubeconfig = self.kubeconfig().display().to_string();
        let own = |folder: &str| self.folder().join(folder).display().to_string();
        let (helm_home, cache) = (own("helm"), own("kubectl"));
        let env = [
            ("KUBECONFIG", &*kubeconfig),
            ("KUBECACHEDIR", &*cache),
            ("HELM_CACHE_HOME", &*helm_home),
            ("HELM_CONFIG_HOME", &*helm_home),
            ("HELM_DATA_HOME", &*helm_home),
        ];
        run(&helm, args, &env, HELM).await
    }

    /// `helm install` or `helm upgrade` of a chart with the namespaces of the installation's method,
    /// this configuration and more arguments.
    pub async fn release(
        &self,
        verb: &str,
        chart: &Path,
        config: &Value,
        more: &[&str],
    ) -> Result<String> {
        let namespace = self.method.manager().namespace;
        let agents = self.method.agent().namespace;
        let values = json!({"agents": {"namespace": agents}, "config": config});
        let file = self.folder().join("values.json");
        std::fs::write(&file, values.to_string())?;
        let (chart, file) = (chart.display().to_string(), file.display().to_string());
        let args = [verb, RELEASE, &chart, "-n", &namespace, "-f", &file];
        self.helm(&[&args[..], more].concat()).await
    }

    pub(crate) async fn install_chart(&self, config: &Value) -> Result<()> {
        debug_assert!(matches!(self.method, Method::Chart { .. }));
        let more = ["--create-namespace"];
        let installed = self.release("install", &chart(), config, &more).await;
        installed.map(drop)
    }
}

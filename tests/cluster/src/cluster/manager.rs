//! Managers of a cluster, as processes.

use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};

use super::{Cluster, START, TAIL};
use crate::http;
use crate::install::{self, Place, PodIdentity, Resolved};
use crate::manifests::merge;
use crate::process::{Launch, Process, free_port, workspace_binary};
use crate::proxy::Proxy;
use crate::wait::eventually;

/// A running manager.
#[derive(Debug)]
pub struct Manager {
    /// Its process.
    pub process: Process,
    /// Address of the health endpoint.
    pub health: String,
    /// Address of the metrics endpoint.
    pub metrics: String,
}

/// A manager to start. Its files are below the cluster's folder.
#[derive(Debug)]
pub struct ManagerLaunch {
    /// Program, arguments and environment.
    pub launch: Launch,
    /// Address of the health endpoint.
    pub health: String,
    /// Address of the metrics endpoint.
    pub metrics: String,
}

impl ManagerLaunch {
    fn start(self, folder: &Path) -> Result<Manager> {
        Ok(Manager {
            process: Process::start(&self.launch, folder)?,
            health: self.health,
            metrics: self.metrics,
        })
    }
}

impl Manager {
    async fn until_ready(mut self) -> Result<Self> {
        let Self {
            process, health, ..
        } = &mut self;
        eventually("the manager to be ready", START, async || {
            if let Some(status) = process.ended()? {
                return Ok(Err(anyhow::anyhow!(
                    "the manager ended with {status}\n{}",
                    process.log_tail(TAIL)
                )));
            }
            http::get(health, "/readyz").await.map(Ok)
        })
        .await??;
        Ok(self)
    }
}

impl Cluster {
    /// Starts a manager and waits until it is ready, including synchronised watches.
    pub async fn start_manager(&self, instance: &str) -> Result<Manager> {
        self.launch_manager(instance).await?.until_ready().await
    }

    /// Like [`Cluster::start_manager`], with a proxy between the manager and the API server.
    pub async fn start_manager_through(&self, proxy: &Proxy, instance: &str) -> Result<Manager> {
        let mut launch = self.manager_launch(instance).await?;
        let env = launch.launch.env.get_or_insert_default();
        let kubeconfig = env.get("KUBECONFIG").context("a kubeconfig")?;
        let through = proxy.kubeconfig(Path::new(kubeconfig))?;
        env.insert("KUBECONFIG".into(), through.display().to_string());
        launch.start(&self.folder)?.until_ready().await
    }

    /// Changes the configuration in the ConfigMap of the manager, and updates the files of a
    /// running manager as the kubelet does.
    pub async fn reconfigure(&self, instance: &str, change: Value) -> Result<()> {
        self.merge_config(change).await?;
        let client = self.client().await?;
        let (template, pod) = self.manager_pod(instance).await?;
        let folder = self.folder.join(&pod.name);
        install::resolve(&client, &template, &pod, &folder).await?;
        Ok(())
    }

    /// The pod of a manager according to the applied Deployment.
    async fn manager_pod(&self, instance: &str) -> Result<(PodTemplateSpec, PodIdentity)> {
        let Place { namespace, name } = self.method.manager();
        let template = self.deployment(&name).await?.spec.template;
        let pod = PodIdentity {
            namespace,
            name: format!("{name}-{instance}"),
            uid: format!("{name}-{instance}"),
            node: String::new(),
        };
        Ok((template, pod))
    }

    /// Starts a manager according to the applied Deployment.
    pub async fn launch_manager(&self, instance: &str) -> Result<Manager> {
        self.manager_launch(instance).await?.start(&self.folder)
    }

    /// Program and arguments of a manager according to the applied Deployment. Only the ports
    /// differ, because several managers share a network.
    pub async fn manager_launch(&self, instance: &str) -> Result<ManagerLaunch> {
        let client = self.client().await?;
        let (template, pod) = self.manager_pod(instance).await?;
        let namespace = pod.namespace.clone();
        let folder = self.folder.join(&pod.name);
        let Resolved {
            args,
            mut env,
            service_account,
        } = install::resolve(&client, &template, &pod, &folder).await?;
        let (health, metrics) = (
            format!("127.0.0.1:{}", free_port()?),
            format!("127.0.0.1:{}", free_port()?),
        );
        own_ports(&args, &health, &metrics)?;
        let kubeconfig = self
            .kubeconfig_for(&format!("sa:{namespace}:{service_account}"))
            .await?;
        env.insert("KUBECONFIG".into(), kubeconfig.display().to_string());
        let launch = Launch {
            name: pod.name,
            program: workspace_binary("lockstep-manager")?,
            args,
            env: Some(env),
        };
        Ok(ManagerLaunch {
            launch,
            health,
            metrics,
        })
    }
}

/// Replaces the addresses in the configuration file that the arguments name.
fn own_ports(args: &[String], health: &str, metrics: &str) -> Result<()> {
    let path = args
        .iter()
        .find_map(|a| a.strip_prefix("--config="))
        .context("the Deployment passes --config=FILE")?;
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "{}".to_owned(),
        text => text?,
    };
    let mut config: Value = serde_saphyr::from_str(&text)?;
    merge(
        &mut config,
        json!({"health": {"bindAddress": health}, "metrics": {"bindAddress": metrics}}),
    );
    std::fs::write(path, config.to_string())?;
    Ok(())
}

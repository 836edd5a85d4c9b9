//! Installation as by a user. Programs run with the arguments, environment and files of the applied
//! Deployment and DaemonSet, so that tests cover the manifests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, Container, EnvVar, PodTemplateSpec,
};
use kube::{Api, Client, ResourceExt};

use crate::cluster::{Cluster, repository};

const HEADER: &str = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n";
/// The layer above both: the place where Prometheus looks for agents depends on their namespace.
const FOLLOWS: &str = "resources: [manager, agents]
replacements:
- source: {kind: DaemonSet, fieldPath: metadata.namespace}
  targets:
  - {select: {kind: PodMonitor}, fieldPaths: [spec.namespaceSelector.matchNames.0]}
";
/// Namespace and name of the manager's Deployment and ServiceAccount, as shipped.
pub const MANAGER: (&str, &str) = ("lockstep-system", "lockstep-manager");
/// Namespace and name of the agent's DaemonSet and ServiceAccount, as shipped.
pub const AGENT: (&str, &str) = ("lockstep-agent", "lockstep-agent");

/// A namespace and a name in it.
#[derive(Clone, Debug)]
pub struct Place {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// How the operator is installed.
#[derive(Clone, Debug)]
pub enum Method {
    /// `config/overlays/full` as it is.
    Shipped,
    /// A user's overlay with a prefix of names, and with the manager and the agents in these
    /// namespaces.
    Renamed {
        /// Prefix of the names.
        prefix: String,
        /// Namespace of the manager.
        manager: String,
        /// Namespace of the agents.
        agents: String,
    },
    /// `charts/lockstep`, with the manager and the agents in these namespaces.
    Chart {
        /// Namespace of the release.
        manager: String,
        /// Namespace of the agents.
        agents: String,
    },
    /// Objects that OLM creates from `bundle/`, all in this namespace.
    Olm(String),
}

impl Method {
    /// Place of the manager's Deployment.
    pub fn manager(&self) -> Place {
        self.place(MANAGER, |renamed, _| renamed)
    }

    /// Place of the agents' DaemonSet.
    pub fn agent(&self) -> Place {
        self.place(AGENT, |_, renamed| renamed)
    }

    fn place<'a>(
        &'a self,
        shipped: (&'a str, &'a str),
        of: impl Fn(&'a str, &'a str) -> &'a str,
    ) -> Place {
        let (prefix, namespace) = match self {
            Self::Shipped => ("", shipped.0),
            Self::Renamed {
                prefix,
                manager,
                agents,
            } => (prefix.as_str(), of(manager, agents)),
            Self::Chart { manager, agents } => ("", of(manager, agents)),
            Self::Olm(namespace) => ("", namespace.as_str()),
        };
        Place {
            namespace: namespace.to_owned(),
            name: format!("{prefix}{}", shipped.1),
        }
    }
}

/// The layers of a user's overlay and their content, as in `docs/install/kustomize.md`: the manager with all
/// cluster-wide objects under one namespace, the agents under another. `config` is the path from
/// the overlay to `config/`, `names` are prefix, namespace of the manager and namespace of the
/// agents. Further components are in the manager's layer.
pub fn renamed_layers(
    config: &str,
    [prefix, manager, agents]: [&str; 3],
    components: &[&str],
) -> [(&'static str, String); 3] {
    let layer = format!("namePrefix: {prefix}\nconfigurations: [names.yaml]\n");
    let shipped = MANAGER.0;
    let components = [&["dashboards"], components].concat();
    let paths = components.iter();
    let paths: Vec<String> = paths
        .map(|c| format!("../{config}/components/{c}"))
        .collect();
    let beside = paths.join(", ");
    [
        (
            "manager",
            format!(
                "{HEADER}namespace: {manager}\n{layer}resources: [../{config}/overlays/default]\ncomponents: [{beside}]\nconfigMapGenerator: [{{name: lockstep-manager-config, namespace: {shipped}, behavior: replace, files: [config.yaml]}}]\n"
            ),
        ),
        (
            "agents",
            format!(
                "{HEADER}namespace: {agents}\n{layer}components: [../{config}/components/agent]\nimages: [{{name: lockstep-agent, newName: ghcr.io/lockstep-dev/lockstep-agent, newTag: v0.1.0}}]\n"
            ),
        ),
        ("", format!("{HEADER}{FOLLOWS}")),
    ]
}

/// Writes these layers below `folder`.
pub fn renamed_overlay(
    repository: &Path,
    folder: &Path,
    names: [&str; 3],
    components: &[&str],
) -> Result<PathBuf> {
    let root = folder.join("overlay");
    let config = config_from(repository, &root)?;
    for (part, text) in renamed_layers(&config, names, components) {
        let folder = root.join(part);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("kustomization.yaml"), text)?;
        // kustomize reads no configuration from outside the layer.
        std::fs::copy(
            repository.join("config/names.yaml"),
            folder.join("names.yaml"),
        )?;
    }
    let file = repository.join("config/manager/config.yaml");
    let shipped = std::fs::read_to_string(file)?;
    let [_, _, agents] = names;
    let config = config_of_agents_in(agents, &shipped)?;
    std::fs::write(root.join("manager/config.yaml"), config)?;
    Ok(root)
}

/// The shipped configuration with another namespace of the agents, as `docs/install/kustomize.md` requires.
fn config_of_agents_in(namespace: &str, shipped: &str) -> Result<String> {
    let line = format!("\n  namespace: {}\n", AGENT.0);
    let found = shipped.matches(&line).count();
    ensure!(found == 1, "{found} lines of the configuration say{line}");
    Ok(shipped.replace(&line, &format!("\n  namespace: {namespace}\n")))
}

/// Writes an overlay below `folder` that consists of an overlay of `config/overlays` and these
/// components.
pub fn overlay(
    repository: &Path,
    folder: &Path,
    base: &str,
    components: &[&str],
) -> Result<PathBuf> {
    let root = folder
        .join(format!("{base}-with"))
        .join(components.join("-"));
    let config = config_from(repository, &root)?;
    let components = components
        .iter()
        .map(|c| format!("{config}/components/{c}"));
    let components: Vec<String> = components.collect();
    let text = format!(
        "{HEADER}resources: [{config}/overlays/{base}]\ncomponents: [{}]\n",
        components.join(", ")
    );
    std::fs::write(root.join("kustomization.yaml"), text)?;
    Ok(root)
}

/// Path from a folder, which is created, to `config/`: kustomize accepts no absolute paths.
fn config_from(repository: &Path, folder: &Path) -> Result<String> {
    std::fs::create_dir_all(folder)?;
    let from = std::fs::canonicalize(folder)?;
    let to = std::fs::canonicalize(repository.join("config"))?;
    let up = "../".repeat(from.components().count() - 1);
    Ok(format!("{up}{}", to.strip_prefix("/")?.display()))
}

/// The ConfigMap that a pod template mounts.
pub fn config_map_of(template: &PodTemplateSpec) -> Option<&str> {
    let volumes = template.spec.as_ref()?.volumes.as_ref()?;
    let mut sources = volumes.iter().filter_map(|v| v.config_map.as_ref());
    Some(&sources.next()?.name)
}

/// The commands under a heading of the pages for kustomize and OLM in `docs/install`, without
/// `kubectl` and comments.
pub fn documented(heading: &str) -> Result<Vec<String>> {
    let mut pages = String::new();
    for page in ["kustomize", "olm"] {
        let path = repository().join(format!("docs/install/{page}.md"));
        pages += &std::fs::read_to_string(path)?;
    }
    let heading = format!("\n## {}", heading.trim_start_matches(['#', ' ']));
    commands(pages.split_once(&heading).context("the heading")?.1)
}

/// The commands of the first block of a page, without `kubectl` and comments.
pub fn commands(page: &str) -> Result<Vec<String>> {
    let block = page.split_once("```sh\n").context("a block")?.1;
    let block = block.split_once("```").context("its end")?.0;
    let command = |l: &str| {
        let command = l.split_once(" #").map_or(l, |(command, _)| command);
        command
            .strip_prefix("kubectl ")
            .map(|c| c.trim_end().to_owned())
            .context(l.to_owned())
    };
    block.lines().map(command).collect()
}

/// Runs such a command with `config/` of this folder.
pub async fn play(cluster: &Cluster, folder: &Path, command: &str) -> Result<()> {
    let config = folder.join("config").display().to_string();
    let command = command.replace(" config/", &format!(" {config}/"));
    let args: Vec<&str> = command.split(' ').collect();
    let done = cluster.kubectl(&args).await;
    done.with_context(|| command.clone()).map(drop)
}

/// Identity of a program's pod, as known to the kubelet.
#[derive(Clone, Debug)]
pub struct PodIdentity {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Node. A placeholder if a process simulates many nodes.
    pub node: String,
}

/// A container's program with everything that the kubelet resolves.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Arguments, with mount paths replaced by folders of this machine.
    pub args: Vec<String>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Service account of the pod.
    pub service_account: String,
}

/// Resolves the main container of a pod template: environment from fields, ConfigMaps as files in
/// `folder`.
pub async fn resolve(
    client: &Client,
    template: &PodTemplateSpec,
    pod: &PodIdentity,
    folder: &Path,
) -> Result<Resolved> {
    let spec = template
        .spec
        .as_ref()
        .context("a pod template has a spec")?;
    let container = main_container(template)?;
    let mut mounts = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let here = folder.join(mount.mount_path.trim_start_matches('/'));
        std::fs::create_dir_all(&here)?;
        let volume = spec.volumes.iter().flatten().find(|v| v.name == mount.name);
        if let Some(source) = volume.and_then(|v| v.config_map.as_ref()) {
            write_config_map(client, &pod.namespace, source, &here).await?;
        }
        mounts.push((mount.mount_path.clone(), here));
    }
    let args = container
        .args
        .iter()
        .flatten()
        .map(|a| with_folders(a, &mounts))
        .collect();
    let env = container
        .env
        .iter()
        .flatten()
        .map(|e| Ok((e.name.clone(), env_value(e, pod)?)))
        .collect::<Result<_>>()?;
    let service_account = spec
        .service_account_name
        .clone()
        .unwrap_or_else(|| "default".into());
    Ok(Resolved {
        args,
        env,
        service_account,
    })
}

fn main_container(template: &PodTemplateSpec) -> Result<&Container> {
    let named = template
        .metadata
        .as_ref()
        .and_then(|m| m.annotations.as_ref())
        .and_then(|a| a.get("kubectl.kubernetes.io/default-container"));
    let containers = &template
        .spec
        .as_ref()
        .context("a pod template has a spec")?
        .containers;
    let found = match named {
        Some(name) => containers.iter().find(|c| c.name == *name),
        None => containers.first(),
    };
    found.context("the template has no main container")
}

/// Writes a ConfigMap into a folder as the kubelet does: each version has a separate folder, and a
/// symbolic link is changed after all files are written.
async fn write_config_map(
    client: &Client,
    namespace: &str,
    source: &ConfigMapVolumeSource,
    folder: &Path,
) -> Result<()> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let map = match maps.get_opt(&source.name).await.context("ConfigMap")? {
        Some(map) => map,
        None if source.optional == Some(true) => return Ok(()),
        None => bail!("there is no ConfigMap {}", source.name),
    };
    let version = format!("..{}", map.resource_version().unwrap_or_default());
    let of_version = folder.join(&version);
    std::fs::create_dir_all(&of_version)?;
    let (data, new) = (folder.join("..data"), folder.join("..data_tmp"));
    let data_of_map = map.data.unwrap_or_default();
    for (key, text) in &data_of_map {
        std::fs::write(of_version.join(key), text)?;
    }
    std::os::unix::fs::symlink(&version, &new)?;
    std::fs::rename(&new, &data)?;
    for key in data_of_map.keys() {
        let link = folder.join(key);
        if link.symlink_metadata().is_err() {
            std::os::unix::fs::symlink(Path::new("..data").join(key), link)?;
        }
    }
    Ok(())
}

fn with_folders(arg: &str, mounts: &[(String, PathBuf)]) -> String {
    mounts.iter().fold(arg.to_owned(), |a, (path, here)| {
        a.replace(path, &here.display().to_string())
    })
}

fn env_value(env: &EnvVar, pod: &PodIdentity) -> Result<String> {
    let Some(source) = &env.value_from else {
        return Ok(env.value.clone().unwrap_or_default());
    };
    let path = source.field_ref.as_ref().map(|f| f.field_path.as_str());
    Ok(match path {
        Some("metadata.name") => pod.name.clone(),
        Some("metadata.namespace") => pod.namespace.clone(),
        Some("metadata.uid") => pod.uid.clone(),
        Some("spec.nodeName") => pod.node.clone(),
        other => bail!(
            "env {} comes from {other:?}, which is not resolved here",
            env.name
        ),
    })
}

//! The control plane with the operator installed.

mod manager;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::audit::AuditLog;
use crate::control_plane::{self, ControlPlane};
use crate::install::{self, Method, Place, PodIdentity, Resolved};
use crate::manifests::merge;
use crate::olm;
use crate::process::{Launch, Process, run, workspace_binary};
use crate::reaper;
use crate::wait::eventually;

pub use self::manager::{Manager, ManagerLaunch};

/// Kubeconfig of a cluster with Lockstep deployed (`make deploy`), which replaces the test's
/// control plane. Not `KUBECONFIG`, which usually names clusters that are not for tests.
const DEPLOYED_CLUSTER: &str = "LOCKSTEP_KUBECONFIG";
/// The first build of the programs on a machine takes a quarter of an hour.
const BUILD: Duration = Duration::from_hours(1);
const START: Duration = Duration::from_mins(1);
const KUBECTL: Duration = Duration::from_mins(1);
/// Namespaces are deleted after the grace periods of their pods.
const MAKE: Duration = Duration::from_mins(5);
/// Lifetime of the tokens of service accounts.
const TOKEN: Duration = Duration::from_hours(24);
/// Lines of logs in failure output.
const TAIL: usize = 60;

/// Differences between a cluster and a user's.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of its folder.
    pub name: String,
    /// Merged into the manager's configuration file in its ConfigMap.
    pub config: Value,
    /// Version of Kubernetes, for example `1.36.3`. Empty for the pinned version.
    pub kubernetes: String,
    /// Additional arguments of the API server.
    pub api_server: Vec<String>,
    /// Feature gates of the API server, the scheduler and the controller manager, as
    /// `A=true,B=true`.
    pub gates: String,
    /// How the operator is installed.
    pub method: Method,
    /// Optional components of `config/components` that [`Method::Shipped`] adds.
    pub components: Vec<&'static str>,
    /// The kubelets of the cluster.
    pub kubelets: control_plane::Kubelets,
    /// Silence after which the node lifecycle controller marks a node NotReady.
    pub node_monitor_grace: Duration,
}

impl Options {
    /// As a user gets it.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.into(),
            config: json!({}),
            kubernetes: String::new(),
            api_server: Vec::new(),
            gates: String::new(),
            method: Method::Shipped,
            components: Vec::new(),
            kubelets: control_plane::Kubelets::Hollow,
            // Longer than the period of the nodes' Leases, shorter than the deadline of a scenario.
            node_monitor_grace: Duration::from_secs(15),
        }
    }
}

/// A running control plane with the operator's manifests applied. [`Cluster::start_manager`] starts
/// the operator.
#[derive(Debug)]
pub struct Cluster {
    folder: PathBuf,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    /// Audit log.
    pub audit: AuditLog,
    /// How the operator is installed.
    pub method: Method,
    /// `None` for a cluster that existed before the test.
    control_plane: Option<ControlPlane>,
}

/// Root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap_or(Path::new("/"))
        .to_path_buf()
}

/// The folder with programs of Kubernetes, `control-plane` or `nodes`. Builds them if the cache
/// lacks them.
pub async fn programs(what: &str) -> Result<PathBuf> {
    programs_of("", what).await
}

/// Like [`programs`], for a version. Empty for the pinned version.
async fn programs_of(version: &str, what: &str) -> Result<PathBuf> {
    let env = [("KUBERNETES", version)];
    let env = if version.is_empty() { &[][..] } else { &env };
    built("kubernetes", &[what], env).await
}

/// Runs the build script in a folder of `tests`. Returns the path that it prints as its last line.
pub(crate) async fn built(folder: &str, args: &[&str], env: &[(&str, &str)]) -> Result<PathBuf> {
    let script = repository().join("tests").join(folder).join("build.sh");
    let out = run(&script, args, env, BUILD).await;
    let out = out.with_context(|| format!("build {folder}"))?;
    let last = out.lines().last().context("build.sh prints a path")?;
    Ok(last.into())
}

impl Cluster {
    /// Starts a control plane and installs the operator's manifests into it.
    pub async fn start(options: &Options) -> Result<Self> {
        let cluster = Self::empty(options).await?;
        if cluster.control_plane.is_some() {
            cluster.install(options).await?;
        }
        Ok(cluster)
    }

    /// Starts a control plane.
    pub async fn empty(options: &Options) -> Result<Self> {
        let folder = reaper::folder()?.join(&options.name);
        std::fs::create_dir_all(&folder)?;
        let audit = AuditLog::create(&options.name)?;
        if let Some(kubeconfig) = std::env::var_os(DEPLOYED_CLUSTER) {
            let (kubectl, kubeconfig) = ("kubectl".into(), kubeconfig.into());
            return Ok(Self {
                folder,
                kubectl,
                kubeconfig,
                audit,
                method: Method::Shipped,
                control_plane: None,
            });
        }
        let programs = programs_of(&options.kubernetes, "control-plane").await?;
        let control_plane = ControlPlane::start(&programs, &folder, &audit, options).await?;
        Ok(Self {
            folder,
            kubectl: programs.join("kubectl"),
            kubeconfig: control_plane.kubeconfig.clone(),
            audit,
            method: options.method.clone(),
            control_plane: Some(control_plane),
        })
    }

    /// Installs the operator's manifests.
    pub async fn install(&self, options: &Options) -> Result<()> {
        match &options.method {
            Method::Shipped => {
                let overlay = match &*options.components {
                    [] => repository().join("config/overlays/full"),
                    more => install::overlay(&repository(), &self.folder, "full", more)?,
                };
                self.apply(&overlay).await?;
            }
            Method::Renamed {
                prefix,
                manager,
                agents,
            } => {
                let names = [&**prefix, manager, agents];
                let overlay = install::renamed_overlay(&repository(), &self.folder, names, &[])?;
                self.apply(&overlay).await?;
            }
            Method::Chart { .. } => self.install_chart(&options.config).await?,
            Method::Olm(namespace) => olm::install(self, namespace).await?,
        }
        self.established(&["--all", "crd"]).await?;
        // The values of a chart contain the configuration.
        let by_chart = matches!(options.method, Method::Chart { .. });
        if options.config != json!({}) && !by_chart {
            self.merge_config(options.config.clone()).await?;
        }
        Ok(())
    }

    /// Changes the configuration in the ConfigMap of the manager.
    async fn merge_config(&self, change: Value) -> Result<()> {
        let namespace = self.method.manager().namespace;
        let deployment = self.deployment(&self.method.manager().name).await?;
        let name = install::config_map_of(&deployment.spec.template).context("a ConfigMap")?;
        let maps = Api::<ConfigMap>::namespaced(self.client().await?, &namespace);
        // A bundle contains no configuration, which the administrator creates.
        let there = maps.get_opt(name).await?;
        let text = match &there {
            Some(map) => map.data.as_ref().and_then(|d| d.get("config.yaml")),
            None => None,
        };
        let text = text.map_or("{}", String::as_str);
        let mut config: Value = serde_saphyr::from_str(text).context("the configuration")?;
        merge(&mut config, change);
        let data = json!({"config.yaml": config.to_string()});
        if there.is_some() {
            let patch = Patch::Merge(json!({"data": data}));
            maps.patch(name, &PatchParams::default(), &patch).await?;
        } else {
            let map = json!({"metadata": {"name": name}, "data": data});
            let map: ConfigMap = serde_json::from_value(map)?;
            maps.create(&PostParams::default(), &map).await?;
        }
        Ok(())
    }

    async fn apply(&self, overlay: &Path) -> Result<()> {
        let overlay = overlay.display().to_string();
        self.kubectl(&["apply", "-k", &overlay]).await.map(drop)
    }

    async fn deployment(&self, name: &str) -> Result<Deployment> {
        let namespace = self.method.manager().namespace;
        let deployments = Api::<Deployment>::namespaced(self.client().await?, &namespace);
        Ok(deployments.get(name).await?)
    }

    /// True if pods are bound to hollow nodes and garbage is collected. Otherwise reports on
    /// standard error that the test is skipped.
    pub fn has_nodes(&self, test: &str) -> bool {
        let has = self.control_plane.as_ref().is_some_and(|c| c.complete);
        reported(
            has,
            test,
            "hollow nodes, and a scheduler and controllers that were started for them",
        )
    }

    /// True if the test started the control plane, so that tokens of all users are available and
    /// the test starts the manager. Otherwise reports on standard error that the test is skipped.
    pub fn is_ours(&self, test: &str) -> bool {
        reported(
            self.control_plane.is_some(),
            test,
            "a control plane that the test has started",
        )
    }

    /// Restarts the API server with other feature gates and additional arguments.
    pub async fn restart_api_server(&mut self, gates: &str, more: &[String]) -> Result<()> {
        let control_plane = self.control_plane.as_mut();
        let control_plane = control_plane.context("a control plane that the test has started")?;
        control_plane
            .restart_api_server(&self.folder, gates, more)
            .await
    }

    /// Certificate chain and private key of the API server.
    pub(crate) fn serving_certificate(&self) -> Result<(PathBuf, PathBuf)> {
        let control_plane = self.control_plane.as_ref();
        let control_plane = control_plane.context("a control plane that the test has started")?;
        Ok(control_plane.serving_certificate())
    }

    /// Folder of this cluster's files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The kubectl of the version of the control plane.
    pub fn kubectl_program(&self) -> &Path {
        &self.kubectl
    }

    /// Kubeconfig of the cluster's administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The administrator's client. Created per test, because connections belong to the runtime that
    /// created them.
    pub async fn client(&self) -> Result<Client> {
        self.client_for(&self.kubeconfig).await
    }

    /// A client with another identity, named as in [`Cluster::kubeconfig_for`].
    pub async fn client_as(&self, identity: &str) -> Result<Client> {
        self.client_for(&self.kubeconfig_for(identity).await?).await
    }

    async fn client_for(&self, kubeconfig: &Path) -> Result<Client> {
        let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(
            kubeconfig,
            &kube::config::KubeConfigOptions::default(),
        )
        .await?;
        Ok(Client::try_from(config)?)
    }

    /// Writes a kubeconfig of another identity:
    ///
    /// - `sa:NAMESPACE:NAME`, a service account
    /// - `sa:NAMESPACE:NAME:NODE`, a service account in a pod on that node
    /// - `user:NAME[:GROUP,...]` and the others of the test's token reviewer
    ///
    /// Tokens of service accounts are those of the TokenRequest API.
    pub async fn kubeconfig_for(&self, identity: &str) -> Result<PathBuf> {
        let token = match identity.split(':').collect::<Vec<_>>().as_slice() {
            ["sa", namespace, name] => self.account_token(namespace, name, None).await?,
            ["sa", namespace, name, node] => {
                let pod = self.pod_of_account(namespace, name, node).await?;
                self.account_token(namespace, name, Some(&pod)).await?
            }
            _ => identity.to_owned(),
        };
        let mut config: Value = serde_json::from_slice(&std::fs::read(&self.kubeconfig)?)?;
        config["users"][0]["user"] = json!({"token": token});
        let path = self
            .folder
            .join(format!("kubeconfig-{}", identity.replace(':', "-")));
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// A token of a service account, optionally bound to a pod.
    async fn account_token(
        &self,
        namespace: &str,
        name: &str,
        pod: Option<&str>,
    ) -> Result<String> {
        let bound = pod.map(|pod| json!({"apiVersion": "v1", "kind": "Pod", "name": pod}));
        let request = serde_json::from_value(json!({
            "metadata": {},
            "spec": {"audiences": [], "expirationSeconds": TOKEN.as_secs(), "boundObjectRef": bound},
        }))?;
        let accounts = Api::<ServiceAccount>::namespaced(self.client().await?, namespace);
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("a token of service account {namespace}/{name}"))?;
        answer.status.and_then(|s| s.token).context("a token")
    }

    /// Creates a pod of a service account that is bound to a node, and returns its name.
    async fn pod_of_account(&self, namespace: &str, account: &str, node: &str) -> Result<String> {
        let name = format!("{account}-token-{node}");
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "serviceAccountName": account,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "c", "image": "registry.example/token:1"}],
            },
        }))?;
        let pods = Api::<Pod>::namespaced(self.client().await?, namespace);
        match pods.create(&PostParams::default(), &pod).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            created => drop(created?),
        }
        Ok(name)
    }

    /// Runs kubectl as the administrator and returns its standard output.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with(args, &[]).await
    }

    /// Like [`Cluster::kubectl`], with additional environment.
    pub async fn kubectl_with(&self, args: &[&str], env: &[(&str, &str)]) -> Result<String> {
        let kubeconfig = self.kubeconfig.display().to_string();
        // A separate cache folder, so that discovery of a control plane is never used for another
        // control plane on the same port.
        let cache = self.folder.join("kubectl").display().to_string();
        let own = [("KUBECONFIG", &*kubeconfig), ("KUBECACHEDIR", &*cache)];
        run(&self.kubectl, args, &[&own, env].concat(), KUBECTL).await
    }

    /// Runs a target of the Makefile on this cluster.
    pub async fn make(&self, args: &[&str]) -> Result<String> {
        let root = repository().display().to_string();
        let kubectl = format!("KUBECTL={}", self.kubectl.display());
        let kubeconfig = self.kubeconfig.display().to_string();
        let cache = self.folder.join("kubectl").display().to_string();
        let env = [("KUBECONFIG", &*kubeconfig), ("KUBECACHEDIR", &*cache)];
        let args = [&["-C", &*root, &*kubectl], args].concat();
        run(Path::new("make"), &args, &env, MAKE).await
    }

    /// Runs `kubectl lockstep` as the administrator and returns its standard output.
    pub async fn lockstep(&self, args: &[&str]) -> Result<String> {
        let kubeconfig = self.kubeconfig.display().to_string();
        let kubectl = self.kubectl.display().to_string();
        run(
            &workspace_binary("kubectl-lockstep")?,
            args,
            &[("KUBECONFIG", &kubeconfig), ("KUBECTL", &kubectl)],
            KUBECTL,
        )
        .await
    }

    /// All objects that name Lockstep, as `Kind namespace/name`, without events and nodes.
    pub async fn objects_of_lockstep(&self) -> Result<Vec<String>> {
        let kinds = self
            .kubectl(&["api-resources", "--verbs=list", "-o", "name"])
            .await?;
        let mut kinds: Vec<&str> = kinds.split_whitespace().collect();
        kinds.retain(|k| !k.starts_with("events") && *k != "nodes");
        // Kinds can be removed during the call. The caller repeats a list that waits for a removed
        // kind.
        let within = "--request-timeout=5s";
        let all = self
            .kubectl(&["get", &kinds.join(","), "-A", "-o", "json", within])
            .await?;
        let all: Value = serde_json::from_str(&all)?;
        let all = all["items"].as_array().context("a list")?;
        let named = all.iter().filter(|o| o.to_string().contains("lockstep"));
        let name = |o: &Value| {
            let text = |field: &str| o["metadata"][field].as_str().unwrap_or_default();
            let kind = o["kind"].as_str().unwrap_or_default();
            format!("{kind} {}/{}", text("namespace"), text("name"))
        };
        Ok(named.map(name).collect())
    }

    /// Waits until definitions are served. Their conditions are null at first, which is an error
    /// for `kubectl wait`.
    pub async fn established(&self, definitions: &[&str]) -> Result<()> {
        let wait = ["wait", "--for=condition=Established", "--timeout=30s"];
        let wait = [&wait, definitions].concat();
        eventually("the definitions to be served", START, async || {
            self.kubectl(&wait).await.map(drop)
        })
        .await
    }

    /// Starts the program of another Deployment of the installation according to that Deployment,
    /// with additional environment.
    pub async fn start_deployment(&self, name: &str, env: &[(&str, &str)]) -> Result<Process> {
        let namespace = self.method.manager().namespace;
        let template = self.deployment(name).await?.spec.template;
        let pod = PodIdentity {
            namespace: namespace.clone(),
            name: format!("{name}-a"),
            uid: format!("{name}-a"),
            node: String::new(),
        };
        let client = self.client().await?;
        let folder = self.folder.join(&pod.name);
        let mut resolved = install::resolve(&client, &template, &pod, &folder).await?;
        let account = format!("sa:{namespace}:{}", resolved.service_account);
        let kubeconfig = self.kubeconfig_for(&account).await?.display().to_string();
        let more = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        resolved.env.extend(more);
        resolved.env.insert("KUBECONFIG".into(), kubeconfig);
        let launch = Launch {
            name: pod.name,
            program: workspace_binary("lockstep-manager")?,
            args: resolved.args,
            env: Some(resolved.env),
        };
        Process::start(&launch, &self.folder)
    }

    /// Arguments and environment of the agent according to the applied DaemonSet.
    pub async fn agent(&self) -> Result<Resolved> {
        let Place { name, .. } = self.method.agent();
        self.agent_on("", &name, &self.folder.join("agent")).await
    }

    /// Like [`Cluster::agent`], for a node with this root folder and a pod with this UID.
    pub async fn agent_on(&self, node: &str, pod_uid: &str, root: &Path) -> Result<Resolved> {
        let Place { namespace, name } = self.method.agent();
        let client = self.client().await?;
        let daemon_set = Api::<DaemonSet>::namespaced(client.clone(), &namespace)
            .get(&name)
            .await?;
        let template = daemon_set.spec.template;
        let pod = PodIdentity {
            namespace,
            name,
            uid: pod_uid.into(),
            node: node.into(),
        };
        install::resolve(&client, &template, &pod, root).await
    }
}

fn reported(has: bool, test: &str, what: &str) -> bool {
    if !has {
        eprintln!("skipped: {test} needs {what}");
    }
    has
}

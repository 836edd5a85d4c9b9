//! The control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, built by
//! `tests/kubernetes` or found in the folder that `KUBEBUILDER_ASSETS` names, as envtest lays it
//! out. If that folder lacks the last two programs, pods are not bound and garbage is not
//! collected.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::audit::AuditLog;
use crate::cluster::Options;
use crate::process::{Launch, Process, free_port};
use crate::tokens::TokenReviewer;
use crate::wait::eventually;

/// The API server is ready after its informers have synced and its bootstrap objects are stored.
const START: Duration = Duration::from_mins(2);

/// Rate and burst of requests per second for the controller manager and the scheduler. Their
/// defaults (20 and 50) are for a server with many clients, and would dominate the times of a test.
const RATE: [&str; 2] = ["--kube-api-qps=1000", "--kube-api-burst=2000"];

/// Address of a control plane with real nodes, in the network namespace of the program that starts
/// it.
pub const ADDRESS: &str = "10.77.0.1";

/// The kubelets of a control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubelets {
    /// The kubelet model. Operator and agents are processes of the test.
    Hollow,
    /// Real kubelets, which reach the API server at [`ADDRESS`], and pods at its Service.
    Real,
}

/// The controllers of a cluster whose operator and agents are processes of the test. Controllers
/// that create pods for Deployments and DaemonSets are absent.
const CONTROLLERS: [&str; 9] = [
    "clusterrole-aggregation-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "resourcequota-controller",
    "serviceaccount-controller",
    "taint-eviction-controller",
];

/// The feature gate of native groups, and the controller that removes their finalizer.
const GENERIC_WORKLOAD: &str = "GenericWorkload=true";
const GROUP_PROTECTION: &str = "podgroup-protection-controller";

/// The running programs of a control plane. Ended on drop.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    /// Kubeconfig of the administrator.
    pub(crate) kubeconfig: PathBuf,
    /// True if pods are bound to nodes and garbage is collected.
    pub(crate) complete: bool,
    files: PathBuf,
    /// Start of the API server, without gates and additional arguments.
    launch: Launch,
    api_server: Process,
    _processes: Vec<Process>,
    _tokens: TokenReviewer,
}

impl ControlPlane {
    /// Starts the programs in folder `programs`. Data, certificates and logs are below `folder`, and
    /// the API server writes `audit`.
    pub(crate) async fn start(
        programs: &Path,
        folder: &Path,
        audit: &AuditLog,
        options: &Options,
    ) -> Result<Self> {
        let Options {
            kubelets, gates, ..
        } = options;
        let kubelets = *kubelets;
        let files = folder.join("control-plane");
        std::fs::create_dir_all(&files)?;
        let tokens = TokenReviewer::start()?;
        let (client, peer) = (url(free_port()?), url(free_port()?));
        let etcd = launch(programs, "etcd", etcd_args(&files, &client, &peer));
        let (server, own) = match kubelets {
            Kubelets::Hollow => hollow_args(free_port()?),
            Kubelets::Real => real_args(),
        };
        let mut args = api_server_args(&files, &client, &tokens.kubeconfig(&files)?);
        args.extend(own);
        args.extend(audit.arguments(&files)?);
        let mut processes = vec![Process::start(&etcd, folder)?];
        let launched = launch(programs, "kube-apiserver", args);
        let with_gates = with(&launched, gates, &options.api_server);
        let mut api_server = Process::start(&with_gates, folder)?;
        let kubeconfig = kubeconfig_of(&files, &server, "admin", "user:admin:system:masters")?;
        let admin = until_ready(&mut api_server, &kubeconfig).await?;
        if kubelets == Kubelets::Hollow {
            bind_nodes(admin).await?;
        }
        let complete = ["kube-controller-manager", "kube-scheduler"]
            .iter()
            .all(|p| programs.join(p).is_file());
        if complete {
            let of = |component: &str| {
                kubeconfig_of(
                    &files,
                    &server,
                    component,
                    &format!("component:{component}"),
                )
            };
            processes.push(Process::start(
                &with(
                    &launch(
                        programs,
                        "kube-controller-manager",
                        controller_args(&files, &of("kube-controller-manager")?, options),
                    ),
                    gates,
                    &[],
                ),
                folder,
            )?);
            let mut args = vec![
                format!("--kubeconfig={}", of("kube-scheduler")?.display()),
                "--leader-elect=false".into(),
                "--secure-port=0".into(),
            ];
            args.extend(RATE.map(str::to_owned));
            processes.push(Process::start(
                &with(&launch(programs, "kube-scheduler", args), gates, &[]),
                folder,
            )?);
        }
        Ok(Self {
            kubeconfig,
            complete,
            files,
            launch: launched,
            api_server,
            _processes: processes,
            _tokens: tokens,
        })
    }

    pub(crate) async fn restart_api_server(
        &mut self,
        folder: &Path,
        gates: &str,
        more: &[String],
    ) -> Result<()> {
        self.api_server.kill()?;
        self.api_server = Process::start(&with(&self.launch, gates, more), folder)?;
        until_ready(&mut self.api_server, &self.kubeconfig)
            .await
            .map(drop)
    }

    /// Certificate chain and private key of the API server.
    pub(crate) fn serving_certificate(&self) -> (PathBuf, PathBuf) {
        (certificate(&self.files), key(&self.files))
    }
}

fn launch(programs: &Path, program: &str, args: Vec<String>) -> Launch {
    Launch {
        name: program.into(),
        program: programs.join(program),
        args,
        env: None,
    }
}

/// The launch with feature gates and further arguments.
fn with(launch: &Launch, gates: &str, more: &[String]) -> Launch {
    let mut launch = launch.clone();
    if !gates.is_empty() {
        launch.args.push(format!("--feature-gates={gates}"));
    }
    launch.args.extend(more.iter().cloned());
    launch
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn etcd_args(files: &Path, client: &str, peer: &str) -> Vec<String> {
    vec![
        format!("--data-dir={}", files.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        "--unsafe-no-fsync".into(),
    ]
}

/// The self-signed certificate of the API server, which is also its authority.
fn certificate(files: &Path) -> PathBuf {
    files.join("apiserver.crt")
}

fn key(files: &Path) -> PathBuf {
    files.join("apiserver.key")
}

/// URL of an API server on the loopback interface, and its arguments.
fn hollow_args(port: u16) -> (String, Vec<String>) {
    let args = vec![
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".into(),
        "--authorization-mode=RBAC".into(),
        // Pods would wait for the service account of their new namespace, which no controller
        // creates.
        "--disable-admission-plugins=ServiceAccount".into(),
    ];
    (format!("https://127.0.0.1:{port}"), args)
}

/// Like [`hollow_args`], for real nodes.
fn real_args() -> (String, Vec<String>) {
    let args = vec![
        // The port of its Service. The server itself has the Service's address, because kube-proxy
        // is absent.
        "--secure-port=443".into(),
        "--bind-address=0.0.0.0".into(),
        format!("--advertise-address={ADDRESS}"),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--kubelet-preferred-address-types=InternalIP".into(),
        "--allow-privileged=true".into(),
    ];
    (format!("https://{ADDRESS}"), args)
}

fn api_server_args(files: &Path, etcd: &str, tokens: &Path) -> Vec<String> {
    vec![
        format!("--etcd-servers={etcd}"),
        // The server signs its own certificate and the tokens of service accounts with the same
        // key.
        format!("--cert-dir={}", files.display()),
        format!("--service-account-key-file={}", key(files).display()),
        format!(
            "--service-account-signing-key-file={}",
            key(files).display()
        ),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        format!(
            "--authentication-token-webhook-config-file={}",
            tokens.display()
        ),
        "--authentication-token-webhook-version=v1".into(),
    ]
}

fn controller_args(files: &Path, kubeconfig: &Path, options: &Options) -> Vec<String> {
    let controllers = match options.kubelets {
        // Versions without it refuse the name.
        Kubelets::Hollow if options.gates.contains(GENERIC_WORKLOAD) => {
            format!("{},{GROUP_PROTECTION}", CONTROLLERS.join(","))
        }
        Kubelets::Hollow => CONTROLLERS.join(","),
        Kubelets::Real => "*".into(),
    };
    let mut args = vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--controllers={controllers}"),
        // Pods use it to trust the API server.
        format!("--root-ca-file={}", certificate(files).display()),
        // Each controller writes under its own name, which admission policies use.
        "--use-service-account-credentials=true".into(),
        format!(
            "--service-account-private-key-file={}",
            key(files).display()
        ),
        format!(
            "--node-monitor-grace-period={}s",
            options.node_monitor_grace.as_secs()
        ),
        "--node-monitor-period=1s".into(),
        "--concurrent-gc-syncs=4".into(),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
    ];
    args.extend(RATE.map(str::to_owned));
    args
}

fn kubeconfig_of(files: &Path, server: &str, name: &str, token: &str) -> Result<PathBuf> {
    let path = files.join(format!("{name}.kubeconfig"));
    let cluster = json!({
        "server": server,
        "certificate-authority": certificate(files),
    });
    std::fs::write(
        &path,
        config_file(&cluster, &json!({"token": token})).to_string(),
    )?;
    Ok(path)
}

/// A kubeconfig for a cluster and a user.
pub(crate) fn config_file(cluster: &Value, user: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        "current-context": "test",
    })
}

/// Waits for the server. Returns a client of the administrator.
async fn until_ready(server: &mut Process, kubeconfig: &Path) -> Result<kube::Client> {
    eventually("kube-apiserver to be ready", START, async || {
        if let Some(status) = server.ended()? {
            return Ok(Err(anyhow::anyhow!(
                "kube-apiserver ended with {status}\n{}",
                server.log_tail(20)
            )));
        }
        let config = kube::config::Kubeconfig::read_from(kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(
            config,
            &kube::config::KubeConfigOptions::default(),
        )
        .await?;
        let client = kube::Client::try_from(config)?;
        let answer = client.request_text(
            kube::core::Request::new("/readyz").list(&kube::api::ListParams::default())?,
        );
        ensure!(answer.await? == "ok", "not ready");
        Ok(Ok(client))
    })
    .await?
}

/// Gives the group of kubelets the rights of nodes. All hollow kubelets are one user, which the
/// node authorizer would not accept as a node.
async fn bind_nodes(client: kube::Client) -> Result<()> {
    let binding = serde_json::from_value(json!({
        "metadata": {"name": "hollow-nodes"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}],
    }))?;
    kube::Api::<k8s_openapi::api::rbac::v1::ClusterRoleBinding>::all(client)
        .create(&kube::api::PostParams::default(), &binding)
        .await
        .context("bind the role of nodes")?;
    Ok(())
}

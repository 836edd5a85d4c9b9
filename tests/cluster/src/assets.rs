//! A real control plane, started from a folder of its programs as envtest lays them out
//! (`KUBEBUILDER_ASSETS`): `etcd` and `kube-apiserver`; with `kube-controller-manager` and
//! `kube-scheduler` beside them pods are bound and collected, too.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::audit::AuditLog;
use crate::process::{Launch, Process, free_port};
use crate::tokens::TokenReviewer;
use crate::wait::eventually;

/// A real API server waits for its informers and its bootstrap objects.
const START: Duration = Duration::from_mins(2);

/// Serves `scheduling.k8s.io` pod groups in whatever version it has them, alpha ones included.
const NATIVE_SCHEDULING: [&str; 2] = [
    "--feature-gates=GenericWorkload=true",
    "--runtime-config=api/all=true",
];

/// What the stand-in has, too; without the controllers that make pods, since the operator and its
/// agents run outside.
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

/// The programs of a control plane, running. Ended when dropped.
#[derive(Debug)]
pub(crate) struct RealPlane {
    /// Kubeconfig of the administrator.
    pub(crate) kubeconfig: PathBuf,
    /// Whether pods are bound to nodes and garbage is collected.
    pub(crate) complete: bool,
    _processes: Vec<Process>,
    _tokens: TokenReviewer,
}

impl RealPlane {
    /// Starts the programs in `assets` with their data, certificates and logs below `folder`, and
    /// the API server with that audit log.
    pub(crate) async fn start(
        assets: &Path,
        folder: &Path,
        audit: &AuditLog,
        native_scheduling: bool,
    ) -> Result<Self> {
        let files = folder.join("plane");
        std::fs::create_dir_all(&files)?;
        let tokens = TokenReviewer::start()?;
        let (client, peer) = (url(free_port()?), url(free_port()?));
        let etcd = launch(assets, "etcd", etcd_args(&files, &client, &peer));
        let port = free_port()?;
        let mut args = api_server_args(&files, &client, port, &tokens.kubeconfig(&files)?);
        args.extend(audit.of_api_server(&files)?);
        if native_scheduling {
            args.extend(NATIVE_SCHEDULING.map(str::to_owned));
        }
        let mut processes = vec![Process::start(&etcd, folder)?];
        let mut api_server = Process::start(&launch(assets, "kube-apiserver", args), folder)?;
        let kubeconfig = kubeconfig(&files, port, "admin", "user:admin:system:masters")?;
        until_ready(&mut api_server, &kubeconfig).await?;
        processes.push(api_server);
        let complete = ["kube-controller-manager", "kube-scheduler"]
            .iter()
            .all(|p| assets.join(p).is_file());
        if complete {
            let mighty = kubeconfig.display().to_string();
            processes.push(Process::start(
                &launch(
                    assets,
                    "kube-controller-manager",
                    controller_args(&files, &mighty),
                ),
                folder,
            )?);
            let args = vec![
                format!("--kubeconfig={mighty}"),
                "--leader-elect=false".into(),
                "--secure-port=0".into(),
            ];
            processes.push(Process::start(
                &launch(assets, "kube-scheduler", args),
                folder,
            )?);
        }
        Ok(Self {
            kubeconfig,
            complete,
            _processes: processes,
            _tokens: tokens,
        })
    }
}

fn launch(assets: &Path, program: &str, args: Vec<String>) -> Launch {
    Launch {
        name: program.into(),
        program: assets.join(program),
        args,
        env: None,
    }
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

/// The key of the certificate that the server makes for itself.
fn key(files: &Path) -> String {
    files.join("apiserver.key").display().to_string()
}

fn api_server_args(files: &Path, etcd: &str, port: u16, tokens: &Path) -> Vec<String> {
    vec![
        format!("--etcd-servers={etcd}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".into(),
        // It signs its own certificate, and the tokens of service accounts by the same key.
        format!("--cert-dir={}", files.display()),
        format!("--service-account-key-file={}", key(files)),
        format!("--service-account-signing-key-file={}", key(files)),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        "--authorization-mode=RBAC".into(),
        format!(
            "--authentication-token-webhook-config-file={}",
            tokens.display()
        ),
        "--authentication-token-webhook-version=v1".into(),
        // Pods would wait for the service account of their new namespace, which without controllers
        // never comes.
        "--disable-admission-plugins=ServiceAccount".into(),
    ]
}

fn controller_args(files: &Path, kubeconfig: &str) -> Vec<String> {
    vec![
        format!("--kubeconfig={kubeconfig}"),
        format!("--controllers={}", CONTROLLERS.join(",")),
        // Each writes under its own name, by which admission policies know them.
        "--use-service-account-credentials=true".into(),
        format!("--service-account-private-key-file={}", key(files)),
        // Longer than the period of the hollow nodes' Leases, shorter than the patience of a
        // scenario.
        "--node-monitor-grace-period=15s".into(),
        "--node-monitor-period=1s".into(),
        "--concurrent-gc-syncs=4".into(),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
    ]
}

fn kubeconfig(files: &Path, port: u16, name: &str, token: &str) -> Result<PathBuf> {
    let path = files.join(format!("{name}.kubeconfig"));
    let cluster = json!({
        "server": format!("https://127.0.0.1:{port}"),
        "certificate-authority": files.join("apiserver.crt"),
    });
    std::fs::write(
        &path,
        config_file(&cluster, &json!({"token": token})).to_string(),
    )?;
    Ok(path)
}

/// A kubeconfig of one cluster and one user.
pub(crate) fn config_file(cluster: &Value, user: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "plane", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "user"}}],
        "current-context": "plane",
    })
}

/// Waits for the server and lets the group of kubelets do what a node may do: kubelets are one
/// group here, without the node authorizer, which knows each by its certificate.
async fn until_ready(server: &mut Process, kubeconfig: &Path) -> Result<()> {
    let client = eventually("kube-apiserver to be ready", START, async || {
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
    .await??;
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

//! Connection to the API server. Each failed request gives a [`Problem`].

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use kube::api::ListParams;
use kube::config::{
    AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo,
    NamedCluster, NamedContext,
};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Config, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::args::Connection;
use crate::problem::{Problem, RequestContext, kubeconfig};

/// Objects per list request: a page of pods has a few megabytes.
pub(super) const PAGE: u32 = 1000;
/// Name of the context that combines the kubeconfig with the flags.
const CHOSEN: &str = "chosen by flags";

pub struct ClusterReader {
    pub(super) client: Client,
    server: String,
    deadline: Option<Duration>,
}

impl ClusterReader {
    /// Connects as kubectl does.
    pub async fn connect(connection: &Connection) -> Result<Self, Problem> {
        Self::connect_with(connection, None).await
    }

    /// Connects for watches. One that is silent for longer has failed: API servers send a bookmark
    /// each minute.
    pub async fn connect_with(
        connection: &Connection,
        silence: Option<Duration>,
    ) -> Result<Self, Problem> {
        let deadline = Some(connection.request_timeout).filter(|t| !t.is_zero());
        let mut config = config(connection).await?;
        // A followed stream can be silent for a long time. `ask` sets the deadline of all other
        // requests.
        config.read_timeout = silence;
        config.connect_timeout = deadline;
        // No retries: a user can repeat a failed command.
        config.default_retry = false;
        let server = config
            .cluster_url
            .to_string()
            .trim_end_matches('/')
            .to_owned();
        let context = RequestContext {
            server: &server,
            kind: "",
        };
        let client = Client::try_from(config).map_err(|error| context.problem(&error))?;
        Ok(Self {
            client,
            server,
            deadline,
        })
    }

    pub fn namespace(&self) -> &str {
        self.client.default_namespace()
    }

    pub fn server(&self) -> &str {
        &self.server
    }

    /// The problem of a request that a watch has made.
    pub(super) fn problem(&self, error: &kube::Error, kind: &str) -> Problem {
        let server = self.server.as_str();
        RequestContext { server, kind }.problem(error)
    }

    /// Awaits a request. Errors become a problem that names the kind.
    pub(super) async fn send<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
        kind: &str,
    ) -> Result<T, Problem> {
        let server = self.server.as_str();
        let response = match self.deadline {
            Some(after) => tokio::time::timeout(after, request).await.map_err(|_| {
                let server = server.to_owned();
                Problem::NoResponse { server, after }
            })?,
            None => request.await,
        };
        response.map_err(|error| RequestContext { server, kind }.problem(&error))
    }

    /// Lists all objects of a kind, sorted by namespace and name.
    pub(super) async fn list<K>(&self, api: Api<K>, labels: Option<&str>) -> Result<Vec<K>, Problem>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let mut all = Vec::new();
        let mut params = ListParams::default().limit(PAGE);
        if let Some(labels) = labels {
            params = params.labels(labels);
        }
        let kind = format!("{}.{}", K::plural(&()), K::group(&()));
        loop {
            let page = self
                .send(api.list(&params), kind.trim_end_matches('.'))
                .await?;
            all.extend(page.items);
            params = match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token(&token),
                None => break,
            };
        }
        all.sort_by_cached_key(|o| (o.namespace(), o.name_any()));
        Ok(all)
    }

    pub(super) fn scoped<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(
        &self,
        namespace: Option<&str>,
    ) -> Api<K> {
        match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }
}

async fn config(connection: &Connection) -> Result<Config, Problem> {
    let read = match &connection.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let file = match read {
        Ok(file) => file,
        // As in kubectl: without a kubeconfig, the pod's service account or the flags suffice.
        Err(error) if connection.kubeconfig.is_none() && is_no_file(&error) => {
            if connection.server.is_none() {
                let inside = Config::incluster().map(|c| impersonating(c, connection));
                // A missing file is an error only if the user named it.
                let named = std::env::var_os("KUBECONFIG").is_some_and(|path| !path.is_empty());
                let missing = if named {
                    error
                } else {
                    KubeconfigError::FindPath
                };
                return inside.map_err(|_| kubeconfig(&missing));
            }
            Kubeconfig::default()
        }
        Err(error) => return Err(kubeconfig(&error)),
    };
    let file = with_flags(file, connection).map_err(|error| kubeconfig(&error))?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|error| kubeconfig(&error))
}

fn is_no_file(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(why, _) => why.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}

fn impersonating(mut config: Config, connection: &Connection) -> Config {
    override_user(&mut config.auth_info, connection);
    config
}

fn override_user(user: &mut AuthInfo, connection: &Connection) {
    if let Some(token) = &connection.token {
        *user = AuthInfo {
            token: Some(token.clone().into()),
            ..AuthInfo::default()
        };
    }
    if connection.impersonate.is_some() {
        user.impersonate.clone_from(&connection.impersonate);
        let groups = Some(connection.impersonate_groups.clone());
        user.impersonate_groups = groups.filter(|g| !g.is_empty());
    }
}

pub fn with_flags(
    mut file: Kubeconfig,
    connection: &Connection,
) -> Result<Kubeconfig, KubeconfigError> {
    let chosen = connection
        .context
        .clone()
        .or(file.current_context.clone())
        .filter(|name| !name.is_empty());
    let mut context = match &chosen {
        Some(name) => {
            let named = file.contexts.iter().find(|c| c.name == *name);
            let context = named.and_then(|c| c.context.clone());
            context.ok_or_else(|| KubeconfigError::LoadContext(name.clone()))?
        }
        None if connection.server.is_some() || connection.cluster.is_some() => Context::default(),
        None => return Err(KubeconfigError::CurrentContextNotSet),
    };
    let cluster = connection.cluster.as_ref().unwrap_or(&context.cluster);
    let named = file.clusters.iter().find(|c| c.name == *cluster);
    let mut entry = match named.and_then(|c| c.cluster.clone()) {
        Some(entry) => entry,
        None if connection.server.is_some() && cluster.is_empty() => Cluster::default(),
        None => return Err(KubeconfigError::LoadClusterOfContext(cluster.clone())),
    };
    if let Some(server) = &connection.server {
        entry.server = Some(server.clone());
    }
    if let Some(authority) = &connection.certificate_authority {
        entry.certificate_authority = Some(authority.display().to_string());
        entry.certificate_authority_data = None;
    }
    if connection.insecure_skip_tls_verify {
        entry.insecure_skip_tls_verify = Some(true);
        entry.certificate_authority = None;
        entry.certificate_authority_data = None;
    }
    if connection.tls_server_name.is_some() {
        entry
            .tls_server_name
            .clone_from(&connection.tls_server_name);
    }
    let name = connection.user.as_ref().or(context.user.as_ref());
    let mut user = file
        .auth_infos
        .iter()
        .find(|u| Some(&u.name) == name)
        .and_then(|u| u.auth_info.clone())
        .unwrap_or_default();
    override_user(&mut user, connection);

    CHOSEN.clone_into(&mut context.cluster);
    context.user = Some(CHOSEN.to_owned());
    let named = CHOSEN.to_owned();
    file.current_context = Some(named.clone());
    file.contexts = vec![NamedContext {
        name: named.clone(),
        context: Some(context),
        ..NamedContext::default()
    }];
    file.clusters = vec![NamedCluster {
        name: named.clone(),
        cluster: Some(entry),
        ..NamedCluster::default()
    }];
    file.auth_infos = vec![NamedAuthInfo {
        name: named,
        auth_info: Some(user),
        ..NamedAuthInfo::default()
    }];
    Ok(file)
}

/// Names of `contexts`, `clusters` or `users` in the kubeconfig; empty if it is unreadable.
pub fn names_in_kubeconfig(path: Option<&Path>, what: &str) -> Vec<String> {
    let read = match path {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let file = read.unwrap_or_default();
    match what {
        "contexts" => file.contexts.into_iter().map(|c| c.name).collect(),
        "clusters" => file.clusters.into_iter().map(|c| c.name).collect(),
        _ => file.auth_infos.into_iter().map(|u| u.name).collect(),
    }
}

/// Name of the context that a connection uses.
pub fn context_name(connection: &Connection) -> String {
    let read = || match &connection.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let chosen = connection.context.clone();
    chosen
        .or_else(|| read().ok()?.current_context)
        .unwrap_or_default()
}

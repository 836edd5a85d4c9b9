//! Number of connections from the programs to the API server, and conditions under which a
//! connection is abandoned.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use http::Uri;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::WatchParams;
use kube::{Api, Client, Config};
use lockstep_cluster::eventually;
use lockstep_cluster::scenario::PATIENCE;
use lockstep_common::api_server::kube_config;
use lockstep_common::connection::{connect, connect_http2};
use lockstep_e2e::cluster;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Forwards connections to a server until it is dropped, and counts them.
struct Relay {
    port: u16,
    connections: Arc<AtomicUsize>,
    /// Keeps the connections but forwards nothing.
    hang: watch::Sender<()>,
    _relaying: JoinSet<()>,
}

impl Relay {
    async fn to(server: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        let (hang, hangs) = watch::channel(());
        let mut relaying = JoinSet::new();
        relaying.spawn(async move {
            let mut relayed = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let server = server.clone();
                let mut hangs = hangs.clone();
                hangs.mark_unchanged();
                relayed.spawn(async move {
                    let mut far = TcpStream::connect(server).await?;
                    tokio::select! {
                        ended = copy_bidirectional(&mut near, &mut far) => ended.map(drop),
                        Ok(()) = hangs.changed() => pending().await,
                    }
                });
            }
        });
        Ok(Self {
            port,
            connections,
            hang,
            _relaying: relaying,
        })
    }

    fn counted(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// The same server through a relay.
async fn through_a_relay(mut config: Config) -> Result<(Config, Relay)> {
    let server = config.cluster_url.authority().context("no authority")?;
    let relay = Relay::to(server.to_string()).await?;
    let through = format!("https://{}:{}", server.host(), relay.port);
    config.cluster_url = through.parse::<Uri>()?;
    Ok((config, relay))
}

/// Number of connections of a client that watches while it reads three objects at a time.
async fn connections(
    config: Config,
    connect: impl Fn(Config) -> kube::Result<Client>,
) -> Result<usize> {
    let (config, relay) = through_a_relay(config).await?;
    let api: Api<ConfigMap> = Api::default_namespaced(connect(config)?);
    api.get_opt("none").await?;
    let watch = api.watch(&WatchParams::default(), "0").await?;
    tokio::try_join!(
        api.get_opt("none"),
        api.get_opt("none"),
        api.get_opt("none")
    )?;
    drop(watch);
    Ok(relay.counted())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_sends_all_requests_on_one_connection_and_a_manager_on_several() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("connections") {
        return Ok(());
    }
    let config = kube_config(Some(cluster.kubeconfig())).await?;
    assert_eq!(connections(config.clone(), connect_http2).await?, 1);
    assert!(connections(config, connect).await? > 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_closes_an_open_connection_without_answers() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("connections that hang") {
        return Ok(());
    }
    let config = kube_config(Some(cluster.kubeconfig())).await?;
    let (config, relay) = through_a_relay(config).await?;
    let api: Api<ConfigMap> = Api::default_namespaced(connect_http2(config)?);
    api.get_opt("none").await?;
    relay.hang.send(())?;
    // No deadline of a request ends the watch, only the end of the connection.
    eventually("an answer", 2 * PATIENCE, async || {
        Ok(api.get_opt("none").await?)
    })
    .await?;
    assert_eq!(relay.counted(), 2);
    Ok(())
}

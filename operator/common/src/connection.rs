//! Connections to the API server that detect an unreachable peer.

use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

/// Silence before the first TCP keepalive probe, and interval of the probes.
const PROBE: Duration = Duration::from_secs(10);
/// Number of unanswered probes after which a connection fails.
const PROBES: u32 = 3;
/// How long sent data may stay unacknowledged (TCP_USER_TIMEOUT): as long as the peer may be
/// silent. Without it, the kernel retransmits for 15 minutes and sends no probes.
const UNACKNOWLEDGED: Duration = PROBE.saturating_mul(PROBES + 1);
/// Silence after which a shared connection sends an HTTP/2 ping, as in client-go. TCP probes do not
/// suffice: the kernel of a hanging server answers them.
const SILENT: Duration = Duration::from_secs(30);
/// How long the server may take to answer the ping, as in client-go. It exceeds the delay of an
/// overloaded server. Otherwise, all agents would reconnect at once, with handshakes and lists.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Connects like kube's client, with TCP keepalive probes. Concurrent requests use separate
/// connections (HTTP/1.1).
///
/// A watch is silent while nothing changes. So is a connection whose peer has vanished, such as an
/// isolated node. kube ends such a watch after 300 s. With probes, the connection fails after 40 s.
/// If the kubeconfig names a proxy or a credential plugin, kube's own client without probes is
/// used. Pods need neither.
///
/// The client never retries, whatever `config` contains.
pub fn connect(mut config: Config) -> kube::Result<Client> {
    // kube's default policy retries every verb up to 15 times, for minutes.
    config.default_retry = false;
    if is_kubes_own(&config) {
        return Client::try_from(config);
    }
    use_provider();
    let connector = config.rustls_https_connector_with_connector(tcp_connector(&config))?;
    over(
        connector,
        &legacy::Client::builder(TokioExecutor::new()),
        config,
    )
}

/// Connects like [`connect`], with one connection for all requests (HTTP/2), like clients in Go.
/// For processes on every node, where a second connection per node would add thousands. The
/// connection fails after 45 s if the server hangs, even if its kernel still responds.
///
/// Falls back to HTTP/1.1 if the server or a proxy supports nothing else, or if its certificate has
/// another name ([`Config::tls_server_name`]).
pub fn connect_http2(config: Config) -> kube::Result<Client> {
    if is_kubes_own(&config) || config.tls_server_name.is_some() {
        return connect(config);
    }
    use_provider();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tcp_connector(&config));
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder
        // By default, a connection is not reused 90 s after its last request started, even if a
        // watch reads from it.
        .pool_idle_timeout(None)
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(SILENT)
        .http2_keep_alive_timeout(PING_TIMEOUT);
    over(connector, &builder, config)
}

/// True if only kube's own client supports this configuration.
fn is_kubes_own(config: &Config) -> bool {
    config.proxy_url.is_some() || config.auth_info.exec.is_some()
}

fn use_provider() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

fn over(
    connector: HttpsConnector<HttpConnector>,
    builder: &legacy::Builder,
    config: Config,
) -> kube::Result<Client> {
    // The deadline of the TCP connector excludes the TLS handshake, but the kernel of a hanging
    // server accepts connections.
    let mut connector = TimeoutConnector::new(connector);
    connector.set_connect_timeout(config.connect_timeout);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(builder.build::<_, Body>(connector));
    Ok(Client::new(service, config.default_namespace))
}

fn tcp_connector(config: &Config) -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(config.connect_timeout);
    // An HTTP/2 request has several frames. With Nagle's algorithm, the second frame waits for an
    // acknowledgement, which the peer delays by 40 ms.
    connector.set_nodelay(true);
    connector.set_keepalive(Some(PROBE));
    connector.set_keepalive_interval(Some(PROBE));
    connector.set_keepalive_retries(Some(PROBES));
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    connector
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::ListParams;
    use kube::core::Request;
    use tokio::net::TcpListener;
    use tower::Service;

    /// The kernel's timer for the connection to this port. 2: keepalive probes.
    fn timer(port: u16) -> Option<u8> {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let to = format!(":{port:04X}");
        let mut rows = table
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row.get(2).is_some_and(|remote| remote.ends_with(&to)))?;
        row.get(5)?.split(':').next()?.parse().ok()
    }

    #[tokio::test]
    async fn a_connection_on_which_nothing_arrives_is_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let client = connect(config).unwrap();
        let request = Request::new("/api").list(&ListParams::default()).unwrap();
        let checked = async {
            let (silent, _) = listener.accept().await.unwrap();
            silent.readable().await.unwrap();
            // Timer 1 runs until sent data is acknowledged.
            while timer(address.port()) == Some(1) {
                tokio::task::yield_now().await;
            }
            timer(address.port())
        };
        tokio::select! {
            answer = client.request_text(request) => panic!("nobody answers: {answer:?}"),
            timer = checked => assert_eq!(timer, Some(2)),
        }
    }

    #[tokio::test]
    async fn what_is_sent_does_not_wait_for_an_acknowledgement_of_what_was_sent_before() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let config = Config::new(server.parse().unwrap());
        let connected = tcp_connector(&config)
            .call(config.cluster_url.clone())
            .await;
        assert!(connected.unwrap().inner().nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_server_that_accepts_without_answering_fails_within_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut config = Config::new(format!("https://{address}").parse().unwrap());
        config.connect_timeout = Some(Duration::from_millis(100));
        for connect in [connect, connect_http2] {
            let client = connect(config.clone()).unwrap();
            let request = Request::new("/api").list(&ListParams::default()).unwrap();
            let answer = tokio::time::timeout(Duration::from_mins(1), client.request_text(request));
            let (_silent, answer) = tokio::join!(listener.accept(), answer);
            assert!(answer.expect("an end").is_err());
        }
    }
}

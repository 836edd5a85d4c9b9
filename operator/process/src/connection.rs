//! A connection to the API server that notices when the other end is gone.

use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

/// Silence after which the other end is asked whether it is still there, and between two questions.
const PROBE: Duration = Duration::from_secs(10);
/// Questions without an answer after which a connection is over.
const PROBES: u32 = 3;
/// How long what was sent may go unacknowledged: as long as silence may last. The kernel sends no probes
/// meanwhile, and of itself would try for a quarter of an hour.
const UNACKNOWLEDGED: Duration = PROBE.saturating_mul(PROBES + 1);
/// Silence after which a server is asked on a connection that all requests share, as by client-go. The
/// kernel of one that hangs answers probes.
const SILENT: Duration = Duration::from_secs(30);
/// How long it has to answer, as with client-go: longer than one that is overloaded needs, which all
/// agents would come back to with handshakes and lists. Until then requests that ended at their
/// deadlines are repeated on the same connection.
const UNANSWERED: Duration = Duration::from_secs(15);

/// Connects as kube's own client does, and has the kernel probe what is silent. Requests that are
/// under way at a time have a connection each (HTTP/1.1).
///
/// A watch is silent while nothing changes, so that a connection whose other end is gone without a
/// word (a node cut off, a load balancer that forgot it) looks the same. kube gives such a watch up
/// after 300 s; with probes it is over after 40 s. Where the kubeconfig names a proxy or a program
/// that gives credentials, the client is kube's own, without probes: what runs in a pod has neither.
///
/// Nothing is repeated, whatever `config` says of retries.
///
/// # Errors
/// The configuration has no certificate or credentials that can be used.
pub fn connect(mut config: Config) -> kube::Result<Client> {
    // Stock retries repeat every verb for up to 15 times and minutes.
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

/// Connects as [`connect`] does, with one connection for all requests (HTTP/2), as clients in Go have:
/// a write shares that of the watches, which is always there. It is for a process on every node, where
/// a second connection is thousands of them. One whose other end does not answer, even where its
/// kernel does, is over after 45 s.
///
/// A server, or what stands before it, that speaks HTTP/1.1 alone is spoken to so; one that has another
/// name in its certificate ([`Config::tls_server_name`]), too.
///
/// # Errors
/// The configuration has no certificate or credentials that can be used.
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
        // By default a connection is not used again 90 s after a request was last made, though a watch
        // still reads from it.
        .pool_idle_timeout(None)
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(SILENT)
        .http2_keep_alive_timeout(UNANSWERED);
    over(connector, &builder, config)
}

/// Whether only kube's own client can do what the configuration asks for.
fn is_kubes_own(config: &Config) -> bool {
    config.proxy_url.is_some() || config.auth_info.exec.is_some()
}

/// The same choice as kube's, which makes it where it builds a client of its own.
fn use_provider() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// A client over a connector, with the layers of kube's own but for its retries.
fn over(
    connector: HttpsConnector<HttpConnector>,
    builder: &legacy::Builder,
    config: Config,
) -> kube::Result<Client> {
    // The TCP connector's own deadline leaves the TLS handshake out: the kernel of a server that hangs
    // accepts connections.
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
    // A request is two frames and more (HTTP/2): the second would wait until the first is acknowledged,
    // which the other end puts off for 40 ms.
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

    /// Which timer runs for the connection to this port, by the kernel's table of connections: 2 is
    /// the one for probes.
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
            // Until what was sent is acknowledged another timer runs.
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
    async fn a_server_that_accepts_and_then_says_nothing_is_given_up_within_the_deadline() {
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

//! A proxy between a component and the API server that injects faults.
//!
//! The proxy terminates TLS on both sides, speaks HTTP/1.1 and HTTP/2, and presents the API
//! server's certificate, so that a kubeconfig needs only another address. Clients authenticate with
//! bearer tokens, because client certificates are not forwarded.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Task, Poll};
use std::time::Duration;

use anyhow::{Context, Result};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;

use crate::cluster::Cluster;

/// Content of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// HTTP method.
    pub method: Method,
    /// Namespace, or empty.
    pub namespace: String,
    /// Plural name of the resource, with its subresource: `pods/status`. Empty for other paths.
    pub resource: String,
    /// True if the request opens a watch.
    pub is_watch: bool,
    /// True if the watch begins with a streamed list.
    pub is_streamed_list: bool,
}

impl Call {
    /// Parses the paths of the API conventions: `/api/v1/...` and `/apis/GROUP/VERSION/...`.
    fn of<B>(request: &Request<B>) -> Self {
        let path: Vec<&str> = request.uri().path().split('/').skip(1).collect();
        let rest = match path.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
            _ => &[],
        };
        let (namespace, object) = match rest {
            ["namespaces", namespace, object @ ..] if !object.is_empty() => (*namespace, object),
            object => ("", object),
        };
        let resource = match object {
            [] => String::new(),
            [resource, _, subresource, ..] => format!("{resource}/{subresource}"),
            [resource, ..] => (*resource).to_owned(),
        };
        let query = request.uri().query().unwrap_or_default();
        let has = |parameter: &str| query.split('&').any(|p| p == parameter);
        Self {
            method: request.method().clone(),
            namespace: namespace.to_owned(),
            resource,
            is_watch: has("watch=true") || has("watch=1"),
            is_streamed_list: has("sendInitialEvents=true"),
        }
    }

    /// True for requests that write, including dry runs.
    pub fn is_write(&self) -> bool {
        self.method != Method::GET
    }
}

/// Effect on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request passes.
    None,
    /// The request is forwarded after this time.
    Delay(Duration),
    /// The request is answered with 429 and this `Retry-After`, in seconds, and not forwarded.
    Refuse(u32),
    /// The API server answers the request, but the answer is not forwarded, so that the client
    /// waits.
    WithholdAnswer,
    /// The API server answers the request, but the connection ends instead of the answer.
    LoseAnswer,
    /// The request is not forwarded, and the connection ends.
    Cut,
    /// The request is neither forwarded nor answered, so that the client waits.
    Hang,
    /// The request passes, and the body of the answer ends early after this time, as an API server
    /// ends a watch.
    EndAfter(Duration),
}

type Decide = Box<dyn Fn(&Call) -> Fault + Send + Sync>;
type Answer = Response<BoxBody<Bytes, io::Error>>;
type Upstream = Client<HttpsConnector<HttpConnector>, Incoming>;

/// A running proxy. On drop, its connections end.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

struct Shared {
    upstream: Upstream,
    server: Uri,
    decide: Mutex<Arc<Decide>>,
    withheld: watch::Sender<bool>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts a proxy to the API server of a cluster that the test started, without faults.
    pub async fn start(cluster: &Cluster) -> Result<Self> {
        let (certificate, key) = cluster.serving_certificate()?;
        let config: Value = serde_json::from_slice(&std::fs::read(cluster.kubeconfig())?)?;
        let server = config["clusters"][0]["cluster"]["server"]
            .as_str()
            .context("a server in the kubeconfig")?;
        Self::to(server.parse()?, &certificate, &key).await
    }

    async fn to(server: Uri, certificate: &Path, key: &Path) -> Result<Self> {
        let certificates: Vec<_> =
            CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
        let mut roots = rustls::RootCertStore::empty();
        // The API server signs its own certificate: the last certificate of the chain is the
        // authority.
        roots.add(certificates.last().context("a certificate")?.clone())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let trusting = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut serving = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(certificates, PrivateKeyDer::from_pem_file(key)?)?;
        serving.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(trusting)
            .https_only()
            .enable_all_versions()
            .build();
        let shared = Arc::new(Shared {
            upstream: Client::builder(TokioExecutor::new()).build(connector),
            server,
            decide: Mutex::new(Arc::new(Box::new(|_| Fault::None))),
            withheld: watch::Sender::new(false),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(
            listener,
            TlsAcceptor::from(Arc::new(serving)),
            shared.clone(),
        ));
        Ok(Self {
            port,
            shared,
            _serving: accepting,
        })
    }

    /// Address for a kubeconfig.
    pub fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Writes a copy of a kubeconfig whose server is this proxy.
    pub fn kubeconfig(&self, of: &Path) -> Result<PathBuf> {
        let mut config: Value = serde_json::from_slice(&std::fs::read(of)?)?;
        config["clusters"][0]["cluster"]["server"] = json!(self.server());
        let path = of.with_extension(format!("proxy-{}", self.port));
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// Selects the faults of requests from now on. Earlier withheld answers no longer count for
    /// [`Proxy::withheld`].
    pub fn inject(&self, decide: impl Fn(&Call) -> Fault + Send + Sync + 'static) {
        let mut now = self.shared.locked();
        self.shared.withheld.send_replace(false);
        *now = Arc::new(Box::new(decide));
    }

    /// Lets all requests pass from now on.
    pub fn clear(&self) {
        self.inject(|_| Fault::None);
    }

    /// Waits until an answer is withheld: the API server has executed the request, and its client
    /// has no answer.
    pub async fn withheld(&self) -> Result<()> {
        let mut withheld = self.shared.withheld.subscribe();
        withheld.wait_for(|is| *is).await?;
        Ok(())
    }
}

impl Shared {
    fn locked(&self) -> std::sync::MutexGuard<'_, Arc<Decide>> {
        self.decide.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request. An error ends its connection, or its stream on HTTP/2.
    async fn answer(&self, request: Request<Incoming>) -> io::Result<Answer> {
        let call = Call::of(&request);
        let decide = self.locked().clone();
        let fault = decide(&call);
        match fault {
            Fault::None | Fault::WithholdAnswer | Fault::LoseAnswer | Fault::EndAfter(_) => {}
            Fault::Delay(delay) => tokio::time::sleep(delay).await,
            Fault::Refuse(seconds) => return too_many_requests(seconds),
            Fault::Cut => return Err(io::ErrorKind::ConnectionReset.into()),
            Fault::Hang => std::future::pending().await,
        }
        let mut answer = self.forward(request).await?;
        match fault {
            Fault::WithholdAnswer => {
                answer.body_mut().collect().await?;
                self.withheld.send_replace(true);
                std::future::pending().await
            }
            Fault::LoseAnswer => {
                answer.body_mut().collect().await?;
                Err(io::ErrorKind::ConnectionReset.into())
            }
            Fault::EndAfter(time) => Ok(answer.map(|body| Ending::after(time, body).boxed())),
            _ => Ok(answer),
        }
    }

    async fn forward(&self, request: Request<Incoming>) -> io::Result<Answer> {
        let (mut head, body) = request.into_parts();
        let mut target = self.server.clone().into_parts();
        target.path_and_query = head.uri.path_and_query().cloned();
        head.uri = Uri::from_parts(target).map_err(io::Error::other)?;
        head.version = http::Version::default();
        // hyper writes the host of the new address.
        head.headers.remove(header::HOST);
        only_end_to_end(&mut head.headers);
        let answer = self
            .upstream
            .request(Request::from_parts(head, body))
            .await
            .map_err(io::Error::other)?;
        let (mut head, body) = answer.into_parts();
        head.version = http::Version::default();
        only_end_to_end(&mut head.headers);
        let body = body.map_err(io::Error::other).boxed();
        Ok(Response::from_parts(head, body))
    }
}

/// Removes headers of a single connection (RFC 9110, section 7.6.1).
fn only_end_to_end(headers: &mut HeaderMap) {
    for name in [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ] {
        headers.remove(name);
    }
}

/// A refusal as by API Priority and Fairness.
fn too_many_requests(seconds: u32) -> io::Result<Answer> {
    let text = "Too many requests, please try again later.";
    let body = Full::from(text).map_err(|never: Infallible| match never {});
    Response::builder()
        .status(StatusCode::TOO_MANY_REQUESTS)
        .header(header::RETRY_AFTER, seconds)
        .body(body.boxed())
        .map_err(io::Error::other)
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let (tls, shared) = (tls.clone(), shared.clone());
        connections.spawn(async move {
            socket.set_nodelay(true)?;
            let stream = TokioIo::new(tls.accept(socket).await?);
            let service = service_fn(|request| {
                let shared = shared.clone();
                async move { shared.answer(request).await }
            });
            // A connection with such a fault ends with an error.
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(stream, service)
                .await;
            io::Result::Ok(())
        });
        while connections.try_join_next().is_some() {}
    }
}

/// A body that ends after a time.
struct Ending {
    body: BoxBody<Bytes, io::Error>,
    end: Pin<Box<Sleep>>,
}

impl Ending {
    fn after(time: Duration, body: BoxBody<Bytes, io::Error>) -> Self {
        let end = Box::pin(tokio::time::sleep(time));
        Self { body, end }
    }
}

impl Body for Ending {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Task<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.end.as_mut().poll(task).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(task)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: Method, uri: &str) -> Call {
        Call::of(&Request::builder().method(method).uri(uri).body(()).unwrap())
    }

    #[test]
    fn a_call_names_namespace_and_resource_of_its_path() {
        let status = call(Method::PATCH, "/api/v1/namespaces/ns/pods/p/status?a=b");
        assert_eq!(
            (&*status.namespace, &*status.resource),
            ("ns", "pods/status")
        );
        let group = call(
            Method::POST,
            "/apis/scheduling.lockstep.dev/v1alpha1/namespaces/ns/podgroups",
        );
        assert_eq!((&*group.namespace, &*group.resource), ("ns", "podgroups"));
        assert!(group.is_write());
        let namespace = call(Method::GET, "/api/v1/namespaces/ns");
        assert_eq!(
            (&*namespace.namespace, &*namespace.resource),
            ("", "namespaces")
        );
        let health = call(Method::GET, "/readyz");
        assert_eq!((&*health.namespace, &*health.resource), ("", ""));
    }

    #[test]
    fn a_watch_is_a_call_that_says_so_in_its_query() {
        assert!(call(Method::GET, "/api/v1/pods?a=b&watch=true").is_watch);
        assert!(!call(Method::GET, "/api/v1/pods?watchers=true").is_watch);
        let streamed = "/api/v1/pods?&watch=true&sendInitialEvents=true";
        assert!(call(Method::GET, streamed).is_streamed_list);
        assert!(!call(Method::GET, "/api/v1/pods?watch=true").is_streamed_list);
    }
}

//! A listener with a limit of open connections.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Most open connections of an endpoint. Prometheus and the kubelet use one each.
pub(super) const MOST: usize = 64;

/// Closes the oldest connection beyond the limit. So idle clients take a bounded amount of memory,
/// and do not keep out the kubelet's probes.
pub(super) struct LimitedListener {
    listener: TcpListener,
    /// Handles of connections, oldest first. A dropped handle closes its connection.
    open: VecDeque<oneshot::Sender<Infallible>>,
}

impl LimitedListener {
    pub fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            open: VecDeque::new(),
        }
    }
}

impl Listener for LimitedListener {
    type Io = LimitedConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (LimitedConnection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        self.open.retain(|handle| !handle.is_closed());
        if self.open.len() >= MOST {
            self.open.pop_front();
        }
        let (handle, closed) = oneshot::channel();
        self.open.push_back(handle);
        let connection = LimitedConnection {
            stream,
            closed: Some(closed),
        };
        (connection, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

pub(super) struct LimitedConnection {
    stream: TcpStream,
    /// `None` after the listener has closed it.
    closed: Option<oneshot::Receiver<Infallible>>,
}

impl LimitedConnection {
    /// The stream, or an error if the listener has closed the connection.
    fn open(&mut self, cx: &mut Context<'_>) -> io::Result<Pin<&mut TcpStream>> {
        let waiting = self.closed.as_mut();
        if waiting.is_none_or(|closed| Pin::new(closed).poll(cx).is_ready()) {
            self.closed = None;
            return Err(ErrorKind::ConnectionAborted.into());
        }
        Ok(Pin::new(&mut self.stream))
    }
}

impl AsyncRead for LimitedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.open(cx)?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for LimitedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.open(cx)?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

//! SIGTERM and SIGINT.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Waits for the first SIGTERM or SIGINT and returns its name. Once called, these signals do not
/// end the process.
pub fn ended_by_signal() -> io::Result<impl Future<Output = &'static str>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

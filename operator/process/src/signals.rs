//! The signals that end a process.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Name of the first SIGTERM or SIGINT. From now on neither ends the process by itself.
///
/// # Errors
/// The kernel takes no handler.
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

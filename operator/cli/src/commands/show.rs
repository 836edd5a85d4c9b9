//! Answers on their way to the terminal.

use std::io::{IsTerminal, Write};

use anstream::{AutoStream, ColorChoice};
use anyhow::Result;
use chrono::{DateTime, Utc};

use crate::args::Format;
use crate::cluster::{Changes, ClusterReader};
use crate::view::{Look, View, render};

/// Reads the wall clock.
pub type WallClock = fn() -> DateTime<Utc>;

/// Clears the screen and goes to its first line.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

/// How things look on this terminal, or in this file, now.
pub fn look(clock: WallClock) -> Look {
    Look {
        color: AutoStream::choice(&std::io::stdout()) != ColorChoice::Never,
        ..Look::plain(clock())
    }
}

/// Writes to standard output; whether somebody still reads it.
pub fn write(text: &str) -> Result<bool> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever closed the pipe has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

/// Shows an answer.
pub fn show(view: &impl View, format: Format, clock: WallClock) -> Result<()> {
    write(&render(view, format, &look(clock))?)?;
    Ok(())
}

/// Shows an answer, and again whenever it has changed: on a terminal in the place of the last one,
/// else below it.
pub async fn watch<V: View>(
    cluster: &ClusterReader,
    namespace: Option<&str>,
    format: Format,
    clock: WallClock,
    read: impl AsyncFn() -> Result<V>,
) -> Result<()> {
    let terminal = std::io::stdout().is_terminal();
    let mut changes: Changes = cluster.changes(namespace);
    let mut last = None;
    loop {
        let view = read().await?;
        // Without ages, which always change.
        let content = serde_json::to_string(&view)?;
        if terminal || last.as_ref() != Some(&content) {
            let text = render(&view, format, &look(clock))?;
            let before = match (terminal, &last) {
                (true, _) => CLEAR,
                (false, Some(_)) => "\n",
                (false, None) => "",
            };
            if !write(&format!("{before}{text}"))? {
                return Ok(());
            }
            last = Some(content);
        }
        changes.next().await;
    }
}

/// Says on standard error what could not be read.
pub fn left_out(unread: impl IntoIterator<Item = impl std::fmt::Display>) {
    for why in unread {
        eprintln!("warning: left out: {why}");
    }
}

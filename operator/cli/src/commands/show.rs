use std::io::{IsTerminal, Write};

use anstream::{AutoStream, ColorChoice};
use anyhow::Result;
use chrono::{DateTime, Utc};

use crate::args::Format;
use crate::cluster::{Changes, ClusterReader};
use crate::view::{RenderOptions, View, render};

pub type WallClock = fn() -> DateTime<Utc>;

/// Escape sequence: clear the screen, move to the first line.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

pub fn render_options(clock: WallClock) -> RenderOptions {
    RenderOptions {
        color: AutoStream::choice(&std::io::stdout()) != ColorChoice::Never,
        width: terminal_width(),
        ..RenderOptions::plain(clock())
    }
}

/// Columns of the terminal; `None` if the output is no terminal, or the terminal has no size.
#[cfg(unix)]
fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

#[cfg(not(unix))]
fn terminal_width() -> Option<usize> {
    None
}

/// Returns false if standard output is closed.
pub fn write(text: &str) -> Result<bool> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

pub fn show(view: &impl View, format: Format, clock: WallClock) -> Result<()> {
    write(&render(view, format, &render_options(clock))?)?;
    Ok(())
}

/// Writes a view after each change: on a terminal in place, else below the last view.
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
        // Without ages, which change constantly.
        let content = serde_json::to_string(&view)?;
        if terminal || last.as_ref() != Some(&content) {
            let text = render(&view, format, &render_options(clock))?;
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

pub fn left_out(unread: impl IntoIterator<Item = impl std::fmt::Display>) {
    for why in unread {
        note!("warning: skipped: {why}");
    }
}

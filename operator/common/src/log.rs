//! The log: one line per event, on standard error.

use std::fmt;
use std::io::IsTerminal;
use std::str::FromStr;

use anyhow::Result;
use clap::{Args, ValueEnum};
use thiserror::Error;
use tracing::Dispatch;
use tracing::dispatcher::set_global_default;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::{MakeWriter, layer};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::{EnvFilter, Registry, reload};

/// What is logged, and how.
#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// Format of log lines.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Minimum level, or levels per module, such as `info,kube=warn`.
    #[arg(long, default_value = "info")]
    pub log_level: LogLevel,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// JSON for machines.
    Json,
}

/// Minimum level that is logged, and levels per module: `info,kube=warn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevel(String);

/// The text contains no valid level. For an unknown word, the filter library would log everything
/// of a module with that name and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("must be off, error, warn, info, debug or trace, or levels per module: info,kube=warn")]
pub struct NoLevel;

impl FromStr for LogLevel {
    type Err = NoLevel;

    fn from_str(text: &str) -> Result<Self, NoLevel> {
        if text.split(',').all(names_level) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NoLevel)
        }
    }
}

fn names_level(part: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-' | '.');
    let (module, level) = part.split_once('=').unwrap_or(("", part));
    // The library accepts numbers as levels. They are rejected, because their meaning is not
    // obvious.
    module.chars().all(is_name)
        && !part.starts_with('=')
        && level.chars().all(char::is_alphabetic)
        && !level.is_empty()
        && level.parse::<LevelFilter>().is_ok()
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl LogLevel {
    fn filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

/// Changes the log level at run time.
#[derive(Clone, Debug)]
pub struct LogHandle(reload::Handle<EnvFilter, Registry>);

impl LogHandle {
    pub fn set(&self, level: &LogLevel) -> Result<()> {
        Ok(self.0.reload(level.filter())?)
    }
}

impl LogArgs {
    pub fn start(&self) -> Result<LogHandle> {
        let colours = std::io::stderr().is_terminal();
        let (log, handle) = self.log(std::io::stderr, colours);
        set_global_default(log)?;
        Ok(handle)
    }

    pub fn log<W>(&self, writer: W, colours: bool) -> (Dispatch, LogHandle)
    where
        W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
    {
        let (filter, handle) = reload::Layer::new(self.log_level.filter());
        let lines = layer().with_writer(writer).with_ansi(colours);
        let lines = match self.log_format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => {
                let lines = lines.json().flatten_event(true);
                // Spans are not nested, so the current one is the whole list.
                lines.with_span_list(false).boxed()
            }
        };
        let log = Registry::default().with(filter).with(lines);
        (Dispatch::new(log), LogHandle(handle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_named_and_other_words_are_refused() {
        for text in [
            "off",
            "info",
            "WARN",
            "info,kube=warn",
            "lockstep_manager::scheduler=trace,error",
        ] {
            let level: LogLevel = text.parse().unwrap();
            assert_eq!(level.to_string(), text);
            assert!(EnvFilter::try_new(text).is_ok(), "{text}");
        }
        for text in [
            "",
            "verbose",
            "info,",
            "3",
            "kube",
            "kube=loud",
            "=info",
            "kube=",
            "[span]=info",
            "a=b=info",
        ] {
            assert_eq!(text.parse::<LogLevel>(), Err(NoLevel), "{text}");
        }
    }
}

//! The log: one line for each event, on standard error.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// What is logged, and how.
#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// Form of a line.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Least level, or a filter such as `info,kube=warn`.
    #[arg(long, default_value = "info")]
    pub log_level: String,
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

impl LogArgs {
    /// Starts the log of the process.
    ///
    /// # Errors
    /// A filter that cannot be read.
    ///
    /// # Panics
    /// The process has a log already.
    pub fn start(&self) -> Result<()> {
        let filter = EnvFilter::try_new(&self.log_level).context("--log-level")?;
        let colours = std::io::stderr().is_terminal();
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(colours);
        match self.log_format {
            LogFormat::Text => log.init(),
            LogFormat::Json => log.json().flatten_event(true).init(),
        }
        Ok(())
    }
}

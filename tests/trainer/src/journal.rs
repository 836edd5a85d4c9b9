//! Events of a member for measurements: one line each, `MICROS EVENT ATTEMPT`, in microseconds
//! since 1970.

use std::fs::File;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::settings::Settings;

#[derive(Clone, Copy, Debug)]
pub enum Milestone {
    Started,
    /// All members are connected.
    Met,
    Stepped,
    /// A peer has another attempt.
    Mixed,
}

impl Milestone {
    fn word(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Met => "met",
            Self::Stepped => "stepped",
            Self::Mixed => "mixed",
        }
    }
}

/// Writes an event to the journal, if there is one.
#[expect(
    clippy::disallowed_methods,
    reason = "the time of the machine is what is measured"
)]
pub fn note(settings: &Settings, event: Milestone) -> Result<()> {
    let Some(path) = &settings.journal else {
        return Ok(());
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    let line = format!("{now} {} {}\n", event.word(), settings.attempt);
    let mut file = File::options()
        .create(true)
        .append(true)
        .open(path)
        .context("open the journal")?;
    file.write_all(line.as_bytes()).context("write the journal")
}

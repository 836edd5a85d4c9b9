//! Output formats: tables with ages for people, JSON and YAML for programs, names for scripts.

pub mod age;
mod look;
pub(crate) mod table;

use anyhow::Result;
use serde::Serialize;

pub use self::look::Look;
use crate::args::Format;

/// Result of a command, ready for output.
pub trait View: Serialize {
    /// Text for people, with a final newline.
    fn screen(&self, look: &Look) -> String;

    /// Objects of the view, as `kubectl get -o name` prints them.
    fn names(&self) -> Vec<String>;
}

/// Name of a workload, as `kubectl get -o name` prints it.
pub fn workload_name(name: &str) -> String {
    format!("trainingworkload.training.lockstep.dev/{name}")
}

pub fn render(view: &impl View, format: Format, look: &Look) -> Result<String> {
    let wide = format == Format::Wide;
    Ok(match format {
        Format::Table | Format::Wide => view.screen(&Look { wide, ..*look }),
        Format::Json => format!("{}\n", serde_json::to_string_pretty(view)?),
        Format::Yaml => serde_saphyr::to_string(view)?,
        Format::Name => match view.names().join("\n") {
            names if names.is_empty() => names,
            names => names + "\n",
        },
    })
}

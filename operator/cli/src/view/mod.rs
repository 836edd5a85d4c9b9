//! How answers look: tables with ages for people, JSON and YAML for programs, names for scripts.

pub mod age;
mod look;
pub(crate) mod table;

use anyhow::Result;
use serde::Serialize;

pub use self::look::Look;
use crate::args::Format;

/// An answer.
pub trait View: Serialize {
    /// For people; ends with a newline.
    fn screen(&self, look: &Look) -> String;

    /// Objects that the answer is about, as `kubectl get -o name` writes them.
    fn names(&self) -> Vec<String>;
}

/// Name of a workload as `kubectl get -o name` writes it.
pub fn workload_name(name: &str) -> String {
    format!("trainingworkload.training.lockstep.dev/{name}")
}

/// The answer in a format.
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

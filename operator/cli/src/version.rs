use std::collections::BTreeSet;

use serde::Serialize;

use crate::view::table::{Cell, Table, Tone};
use crate::view::{RenderOptions, View};

pub const CLIENT: &str = lockstep_version::VERSION;

/// Versions in a cluster. Forbidden values are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionReport {
    pub client: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<String>,
    /// Served versions of the API group; empty: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<BTreeSet<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managers: Option<BTreeSet<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<BTreeSet<String>>,
}

impl VersionReport {
    /// Only the version of this program.
    pub fn of_client() -> Self {
        Self {
            client: CLIENT.to_owned(),
            ..Self::default()
        }
    }

    /// Managers and agents of another version than this program. Ignores tags that are no versions.
    pub fn skew(&self) -> Vec<String> {
        let components = [("manager", &self.managers), ("agents", &self.agents)].into_iter();
        components
            .filter_map(|(what, versions)| self.skew_of(what, versions.as_ref()?))
            .collect()
    }

    fn skew_of(&self, what: &str, versions: &BTreeSet<String>) -> Option<String> {
        let others: Vec<&str> = versions
            .iter()
            .filter(|v| v.starts_with(|c: char| c.is_ascii_digit()))
            .filter(|v| **v != self.client)
            .map(String::as_str)
            .collect();
        (!others.is_empty()).then(|| {
            format!(
                "{what} {} and kubectl-lockstep {} differ",
                others.join(", "),
                self.client
            )
        })
    }
}

/// Version in the tag of an image, or another tag; `None` for an image with only a digest.
pub fn version_of(image: &str) -> Option<&str> {
    let tag = tag(image)?;
    let version = tag.strip_prefix('v');
    Some(
        version
            .filter(|v| v.starts_with(|c: char| c.is_ascii_digit()))
            .unwrap_or(tag),
    )
}

fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next().unwrap_or(image);
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split_once(':').map(|(_, tag)| tag)
}

fn listed(versions: Option<&BTreeSet<String>>, none: &str) -> Cell {
    match versions {
        None => not_permitted(),
        Some(v) if v.is_empty() => Cell::new(none, Tone::Busy),
        Some(v) => v.iter().cloned().collect::<Vec<_>>().join(", ").into(),
    }
}

fn not_permitted() -> Cell {
    Cell::from("unknown: no permission to read")
}

impl View for VersionReport {
    fn screen(&self, options: &RenderOptions) -> String {
        let mut table = Table::new(&["COMPONENT", "VERSION"]);
        table.row([Cell::from("kubectl-lockstep"), self.client.clone().into()]);
        let Some(kubernetes) = self.kubernetes.clone() else {
            return table.render(options);
        };
        let api = listed(self.api.as_ref(), "not installed");
        let managers = listed(self.managers.as_ref(), "none running");
        let agents = listed(self.agents.as_ref(), "none reporting");
        table.row([Cell::from("Kubernetes"), kubernetes.into()]);
        table.row([Cell::from("API"), api]);
        table.row([Cell::from("manager"), managers]);
        table.row([Cell::from("agents"), agents]);
        let mut out = table.render(options);
        for skew in self.skew() {
            out.push_str(&Tone::Busy.paint(&format!("\n{skew}\n"), options));
        }
        out
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_past_ports_and_digests() {
        let images = [
            ("ghcr.io/x/lockstep-manager:v0.1.0", Some("0.1.0")),
            ("localhost:5000/m:v1@sha256:00", Some("1")),
            ("localhost:5000/m:vision", Some("vision")),
            ("localhost:5000/m@sha256:00", None),
        ];
        for (image, expected) in images {
            assert_eq!(version_of(image), expected, "{image}");
        }
    }
}

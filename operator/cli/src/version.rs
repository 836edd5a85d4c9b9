//! Which versions of Lockstep meet here.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::view::table::{Cell, Table, Tone};
use crate::view::{Look, View};

/// Version of this program.
pub const CLIENT: &str = lockstep_version::VERSION;

/// What is known of the versions in a cluster. What may not be read is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionReport {
    /// Of this program.
    pub client: String,
    /// Of Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<String>,
    /// VersionReport of the API group that are served; empty: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<BTreeSet<String>>,
    /// Tags of the manager's images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managers: Option<BTreeSet<String>>,
    /// Of the node agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<BTreeSet<String>>,
}

impl VersionReport {
    /// Manager and agents of other versions than this program. Tags that are no version say nothing.
    pub fn skew(&self) -> Vec<String> {
        let of = |what: &str, versions: &Option<BTreeSet<String>>| {
            let others = versions.iter().flatten().filter(|v| {
                let plain = v.trim_start_matches('v');
                plain.starts_with(|c: char| c.is_ascii_digit()) && plain != self.client
            });
            let others: Vec<&str> = others.map(String::as_str).collect();
            (!others.is_empty()).then(|| {
                format!(
                    "{what} {} and kubectl-lockstep {} differ",
                    others.join(", "),
                    self.client
                )
            })
        };
        [of("manager", &self.managers), of("agents", &self.agents)]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// The tag of an image; none for one that is named by digest alone.
pub fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next().unwrap_or(image);
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split_once(':').map(|(_, tag)| tag)
}

impl View for VersionReport {
    fn screen(&self, look: &Look) -> String {
        let mut table = Table::new(&["COMPONENT", "VERSION"]);
        let unknown = || Cell::from("not known: it may not be read");
        let listed = |versions: &Option<BTreeSet<String>>, none: &str| match versions {
            None => unknown(),
            Some(v) if v.is_empty() => Cell::new(none, Tone::Busy),
            Some(v) => v.iter().cloned().collect::<Vec<_>>().join(", ").into(),
        };
        table.row([Cell::from("kubectl-lockstep"), self.client.clone().into()]);
        let kubernetes = self.kubernetes.clone().map_or_else(unknown, Cell::from);
        table.row([Cell::from("Kubernetes"), kubernetes]);
        table.row([Cell::from("API"), listed(&self.api, "not installed")]);
        table.row([Cell::from("manager"), listed(&self.managers, "none runs")]);
        table.row([Cell::from("agents"), listed(&self.agents, "none reports")]);
        let mut out = table.render(look);
        for skew in self.skew() {
            out.push_str(&Tone::Busy.paint(&format!("\n{skew}\n"), look));
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
    fn tags_are_read_past_ports_and_digests() {
        let images = [
            ("ghcr.io/x/lockstep-manager:v0.1.0", Some("v0.1.0")),
            ("localhost:5000/m:v1@sha256:00", Some("v1")),
            ("localhost:5000/m@sha256:00", None),
        ];
        for (image, expected) in images {
            assert_eq!(tag(image), expected, "{image}");
        }
    }
}

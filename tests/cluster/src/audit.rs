//! The audit log of the control plane: every write, and every kind of read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

/// User name of the manager.
pub const MANAGER: &str = "system:serviceaccount:lockstep-system:lockstep-manager";
/// User name of the agents.
pub const AGENT: &str = "system:serviceaccount:lockstep-agent:lockstep-agent";

/// One write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Write {
    /// When the request arrived, RFC 3339.
    pub time: String,
    /// User name.
    pub user: String,
    /// API verb.
    pub verb: String,
    /// API group; empty for core.
    pub api_group: String,
    /// Resource, plural.
    pub resource: String,
    /// Subresource or empty.
    pub subresource: String,
    /// Namespace or empty.
    pub namespace: String,
    /// Name or empty.
    pub name: String,
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason of a refusal.
    pub reason: String,
    /// Version of the object before.
    pub resource_version_before: String,
    /// Version of the object after.
    pub resource_version_after: String,
    /// Whether nothing was to be stored.
    pub dry_run: bool,
}

impl Write {
    /// Whether something was stored.
    pub fn changed(&self) -> bool {
        self.code < 300 && !self.dry_run && self.resource_version_before != self.resource_version_after
    }

    /// Resource with its subresource, such as `pods/eviction`.
    pub fn target(&self) -> String {
        join(&self.resource, &self.subresource)
    }
}

/// One kind of read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Read {
    user: String,
    verb: String,
    api_group: String,
    resource: String,
    subresource: String,
    allowed: bool,
}

/// What RBAC decides about: verb and resource, without names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// User name.
    pub user: String,
    /// API verb.
    pub verb: String,
    /// API group; empty for core.
    pub group: String,
    /// Resource with its subresource.
    pub resource: String,
}

/// The two files of one control plane.
#[derive(Clone, Debug)]
pub struct AuditLog {
    /// Writes.
    pub writes: PathBuf,
    /// Reads.
    pub reads: PathBuf,
}

impl AuditLog {
    /// The files in a folder.
    pub fn in_folder(folder: &Path) -> Self {
        Self { writes: folder.join("writes.jsonl"), reads: folder.join("reads.jsonl") }
    }

    /// All writes so far, oldest first.
    pub fn writes(&self) -> Result<Vec<Write>> {
        lines(&self.writes)
    }

    /// Writes by one user.
    pub fn writes_by(&self, user: &str) -> Result<Vec<Write>> {
        Ok(self.writes()?.into_iter().filter(|w| w.user == user).collect())
    }

    /// What one user has asked for on resources: reads that were allowed and every write.
    pub fn calls_by(&self, user: &str) -> Result<BTreeSet<Call>> {
        let reads: Vec<Read> = lines(&self.reads)?;
        let of_reads = reads.into_iter().filter(|r| r.user == user && r.allowed && !r.resource.is_empty()).map(|r| {
            Call { user: r.user, verb: r.verb, group: r.api_group, resource: join(&r.resource, &r.subresource) }
        });
        let of_writes = self.writes_by(user)?.into_iter().map(|w| Call {
            resource: w.target(),
            user: w.user,
            verb: w.verb,
            group: w.api_group,
        });
        Ok(of_reads.chain(of_writes).collect())
    }
}

fn join(resource: &str, subresource: &str) -> String {
    if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") }
}

/// Complete lines of a file that is being written; a missing file has none yet.
fn lines<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Vec<T>> {
    let text = match std::fs::read_to_string(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| path.display().to_string())?,
    };
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete.lines().map(|l| serde_json::from_str(l).with_context(|| l.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_still_being_written_is_left_for_later() {
        let folder = tempfile::tempdir().unwrap();
        let log = AuditLog::in_folder(folder.path());
        std::fs::write(&log.writes, "{\"user\":\"a\",\"verb\":\"create\",\"code\":201}\n{\"user\":\"b\"").unwrap();
        assert_eq!(log.writes().unwrap().len(), 1);
    }
}

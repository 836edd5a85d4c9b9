//! The audit log of the control plane: every write, and every kind of read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::process::{Pid, test_kill_process};
use serde::Deserialize;

/// User name of the manager.
pub const MANAGER: &str = "system:serviceaccount:lockstep-system:lockstep-manager";
/// User name of the agents.
pub const AGENT: &str = "system:serviceaccount:lockstep-agent:lockstep-agent";

/// User that the end-to-end tests give role `lockstep-whatif`.
pub const WHATIF: &str = "reader-of-whatif";
/// User that the end-to-end tests give role `lockstep-oncall`.
pub const ON_CALL: &str = "reader-on-call";

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
        self.code < 300
            && !self.dry_run
            && self.resource_version_before != self.resource_version_after
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
        Self {
            writes: folder.join("writes.jsonl"),
            reads: folder.join("reads.jsonl"),
        }
    }

    /// The log of a cluster of this program, in a place that outlives the program: the roles are
    /// judged by the calls of all test programs of a run together. Logs of runs that are over are
    /// removed.
    pub fn create(cluster: &str) -> Result<Self> {
        let exe = std::env::current_exe().context("path of this program")?;
        let stem = exe
            .file_stem()
            .context("a file name")?
            .to_string_lossy()
            .into_owned();
        // Cargo appends a hash to the names of test programs.
        let program = stem
            .rsplit_once('-')
            .map_or(stem.as_str(), |(name, _)| name);
        let (root, run) = (Self::root()?, parent_id());
        for old in folders(&root)?
            .into_iter()
            .filter(|f| *f != root.join(run.to_string()) && is_over(f))
        {
            remove(&old)?;
        }
        let folder = root.join(run.to_string()).join(program).join(cluster);
        remove(&folder)?;
        std::fs::create_dir_all(&folder)?;
        Ok(Self::in_folder(&folder))
    }

    /// The logs that the test programs of this run have left, by program and cluster.
    pub fn all() -> Result<BTreeMap<(String, String), Self>> {
        let mut out = BTreeMap::new();
        for program in folders(&Self::root()?.join(parent_id().to_string()))? {
            for cluster in folders(&program)? {
                let name = |p: &Path| {
                    p.file_name()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into_owned()
                };
                out.insert((name(&program), name(&cluster)), Self::in_folder(&cluster));
            }
        }
        Ok(out)
    }

    /// Beside the test programs, with a folder for each run: the process that starts them, so that
    /// two runs at once do not see each other.
    fn root() -> Result<PathBuf> {
        let exe = std::env::current_exe().context("path of this program")?;
        let built = exe
            .ancestors()
            .find(|a| a.ends_with("deps"))
            .and_then(Path::parent);
        Ok(built.or(exe.parent()).context("a folder")?.join("audit"))
    }

    /// Reads on from here as lines are added.
    pub fn follow(&self) -> Result<Follow> {
        let end = std::fs::metadata(&self.writes).map_or(0, |m| m.len());
        Ok(Follow {
            file: File::open(&self.writes)?,
            position: end,
            partial: String::new(),
        })
    }

    /// All writes so far, oldest first.
    pub fn writes(&self) -> Result<Vec<Write>> {
        lines(&self.writes)
    }

    /// Writes by one user.
    pub fn writes_by(&self, user: &str) -> Result<Vec<Write>> {
        Ok(self
            .writes()?
            .into_iter()
            .filter(|w| w.user == user)
            .collect())
    }

    /// What one user has asked for on resources: reads that were allowed and every write.
    pub fn calls_by(&self, user: &str) -> Result<BTreeSet<Call>> {
        let reads: Vec<Read> = lines(&self.reads)?;
        let of_reads = reads
            .into_iter()
            .filter(|r| r.user == user && r.allowed && !r.resource.is_empty())
            .map(|r| Call {
                user: r.user,
                verb: r.verb,
                group: r.api_group,
                resource: join(&r.resource, &r.subresource),
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

/// A reader of writes as they happen.
#[derive(Debug)]
pub struct Follow {
    file: File,
    position: u64,
    partial: String,
}

impl Follow {
    /// Writes that were added since the last call.
    pub fn added(&mut self) -> Result<Vec<Write>> {
        self.file.seek(SeekFrom::Start(self.position))?;
        self.position += self.file.read_to_string(&mut self.partial)? as u64;
        let complete = self.partial.rfind('\n').map_or(0, |end| end + 1);
        let lines: String = self.partial.drain(..complete).collect();
        lines
            .lines()
            .map(|l| serde_json::from_str(l).with_context(|| l.to_owned()))
            .collect()
    }
}

/// Whether the process that a run's folder is called after has ended.
fn is_over(run: &Path) -> bool {
    let pid = run
        .file_name()
        .and_then(|n| n.to_str()?.parse().ok())
        .and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid).is_err())
}

/// Removes a folder, unless another process was faster.
fn remove(folder: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn folders(parent: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(parent) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut out: Vec<PathBuf> = entries
        .map(|e| e.map(|e| e.path()))
        .collect::<std::io::Result<_>>()?;
    out.retain(|p| p.is_dir());
    out.sort();
    Ok(out)
}

fn join(resource: &str, subresource: &str) -> String {
    if subresource.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}/{subresource}")
    }
}

/// Complete lines of a file that is being written; a missing file has none yet.
fn lines<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Vec<T>> {
    let text = match std::fs::read_to_string(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| path.display().to_string())?,
    };
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete
        .lines()
        .map(|l| serde_json::from_str(l).with_context(|| l.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_still_being_written_is_left_for_later() {
        let folder = tempfile::tempdir().unwrap();
        let log = AuditLog::in_folder(folder.path());
        std::fs::write(
            &log.writes,
            "{\"user\":\"a\",\"verb\":\"create\",\"code\":201}\n{\"user\":\"b\"",
        )
        .unwrap();
        assert_eq!(log.writes().unwrap().len(), 1);
    }
}

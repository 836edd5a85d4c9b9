//! The audit log of the API server: all writes, and all kinds of reads.

mod events;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::process::{Pid, test_kill_process};
use serde::de::DeserializeOwned;

use events::{Event, Versions};
pub use write::{Call, Write};

/// User name of the manager.
pub const MANAGER: &str = "system:serviceaccount:lockstep-system:lockstep-manager";
/// User name of the agents.
pub const AGENT: &str = "system:serviceaccount:lockstep-agent:lockstep-agent";

/// User that the end-to-end tests give role `lockstep-whatif`.
pub const WHATIF: &str = "reader-of-whatif";
/// User that the end-to-end tests give role `lockstep-oncall`.
pub const ON_CALL: &str = "reader-on-call";

/// The log of one API server.
#[derive(Clone, Debug)]
pub struct AuditLog {
    events: PathBuf,
}

impl AuditLog {
    fn in_folder(folder: &Path) -> Self {
        Self {
            events: folder.join("events.jsonl"),
        }
    }

    /// Arguments with which kube-apiserver writes this log, with its policy in `folder`.
    pub(crate) fn arguments(&self, folder: &Path) -> Result<Vec<String>> {
        events::arguments(folder, &self.events)
    }

    /// The log of a cluster of this program. The file outlives the program, because the roles are
    /// compared with the calls of all test programs of a run. Removes logs of completed runs.
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

    /// The logs of all test programs of this run, by program and cluster.
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

    /// Folder next to the test programs, with a subfolder per run. The run is the process that
    /// starts the test programs, so that simultaneous runs are separate.
    fn root() -> Result<PathBuf> {
        let exe = std::env::current_exe().context("path of this program")?;
        let built = exe
            .ancestors()
            .find(|a| a.ends_with("deps"))
            .and_then(Path::parent);
        Ok(built.or(exe.parent()).context("a folder")?.join("audit"))
    }

    /// Reads lines that are added from now on.
    pub fn follow(&self) -> Result<Follow> {
        let mut follow = self.whole();
        follow.added()?;
        Ok(follow)
    }

    /// All writes so far, oldest first.
    pub fn writes(&self) -> Result<Vec<Write>> {
        self.whole().added()
    }

    fn whole(&self) -> Follow {
        Follow {
            lines: Lines {
                path: self.events.clone(),
                position: 0,
            },
            versions: Versions::default(),
        }
    }

    /// Writes by one user.
    pub fn writes_by(&self, user: &str) -> Result<Vec<Write>> {
        Ok(self
            .writes()?
            .into_iter()
            .filter(|w| w.user == user)
            .collect())
    }

    /// Calls of a user on resources: allowed reads and all writes.
    pub fn calls_by(&self, user: &str) -> Result<BTreeSet<Call>> {
        let mut calls = self.calls()?;
        calls.retain(|c| c.user == user);
        Ok(calls)
    }

    /// Calls of all users on resources: allowed reads and all writes.
    pub fn calls(&self) -> Result<BTreeSet<Call>> {
        let Follow {
            mut lines,
            mut versions,
        } = self.whole();
        let events: Vec<Event> = lines.added()?;
        let mut calls: BTreeSet<Call> = events.iter().filter_map(Event::read).collect();
        let writes = events.into_iter().filter_map(|e| versions.write(e));
        calls.extend(writes.map(|w| Call {
            resource: w.target(),
            user: w.user,
            verb: w.verb,
            group: w.api_group,
        }));
        Ok(calls)
    }
}

/// A reader of writes as they happen.
#[derive(Debug)]
pub struct Follow {
    lines: Lines,
    versions: Versions,
}

impl Follow {
    /// Writes that were added since the last call.
    pub fn added(&mut self) -> Result<Vec<Write>> {
        let events: Vec<Event> = self.lines.added()?;
        Ok(events
            .into_iter()
            .filter_map(|e| self.versions.write(e))
            .collect())
    }
}

/// Complete lines of a file that grows. A missing file has no lines.
#[derive(Debug)]
struct Lines {
    path: PathBuf,
    position: u64,
}

impl Lines {
    /// Lines that were added since the last call.
    fn added<T: DeserializeOwned>(&mut self) -> Result<Vec<T>> {
        let mut file = match File::open(&self.path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.with_context(|| self.path.display().to_string())?,
        };
        file.seek(SeekFrom::Start(self.position))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let complete = text
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |end| end + 1);
        self.position += complete as u64;
        std::str::from_utf8(&text[..complete])?
            .lines()
            .map(|l| serde_json::from_str(l).with_context(|| l.to_owned()))
            .collect()
    }
}

/// True if the process that names a run's folder has ended.
fn is_over(run: &Path) -> bool {
    let pid = run
        .file_name()
        .and_then(|n| n.to_str()?.parse().ok())
        .and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid).is_err())
}

/// Removes a folder, unless another process removed it first.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_still_being_written_is_left_for_later() {
        let folder = tempfile::tempdir().unwrap();
        let log = AuditLog::in_folder(folder.path());
        let line = events::tests::line(serde_json::json!({})).to_string();
        std::fs::write(&log.events, format!("{line}\n{}", &line[..9])).unwrap();
        assert_eq!(log.writes().unwrap().len(), 1);
    }
}

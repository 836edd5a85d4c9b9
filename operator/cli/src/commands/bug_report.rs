use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::show::{WallClock, show};
use crate::args::{BugReportArgs, Format};
use crate::bug_report::Choice;
use crate::cluster::ClusterReader;
use crate::outcome::Outcome;

/// End of the name of an archive.
const END: &str = ".tar.gz";

pub async fn bug_report(
    cluster: &ClusterReader,
    args: &BugReportArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let namespace = args.scope.or_of(cluster.namespace());
    for (name, namespace) in args.workloads.iter().filter_map(|w| Some((w, namespace?))) {
        cluster.workload(namespace, name).await?;
    }
    let choice = Choice {
        namespace: namespace.map(str::to_owned),
        workloads: args.workloads.clone(),
        pseudonyms: !args.names,
        logs: args.logs,
    };
    let now = clock();
    let progress = |line| note!("{line}");
    let material = cluster
        .bug_report(&choice, args.tail, now, progress)
        .await?;
    let mut report = material.report(&choice, now)?;
    save(&args.output, &report.bytes)?;
    report.summary.archive = args.output.display().to_string();
    if choice.pseudonyms {
        let path = names_of(&args.output);
        save(&path, report.names.as_bytes())?;
        report.summary.names = path.display().to_string();
    }
    show(&report.summary, Format::Table, clock)?;
    Ok(Outcome::Done)
}

/// `bug-report.names.txt` for `bug-report.tar.gz`.
fn names_of(archive: &Path) -> PathBuf {
    let path = archive.display().to_string();
    PathBuf::from(format!(
        "{}.names.txt",
        path.strip_suffix(END).unwrap_or(&path)
    ))
}

/// Writes a file that only this user can read; an existing file is replaced.
fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // An existing file may be open to others. If it stays, the creation fails.
    let _ = std::fs::remove_file(&part);
    let written = options.open(&part).and_then(|mut f| f.write_all(bytes));
    let written = written.and_then(|()| std::fs::rename(&part, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_of_an_earlier_run_does_not_open_the_new_one_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names.txt");
        let part = folder.path().join("names.txt.part");
        std::fs::write(&part, "old").unwrap();
        set_permissions(&part, Permissions::from_mode(0o644)).unwrap();
        save(&path, b"new").unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }
}

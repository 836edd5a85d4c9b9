//! Reads the commit from git. `LOCKSTEP_COMMIT` and `LOCKSTEP_COMMIT_DATE` override it, for builds
//! without git such as from an archive. Without either, the value is `unknown`.

use std::path::Path;
use std::process::Command;

const UNKNOWN: &str = "unknown";

fn main() {
    let of_git = of_git();
    let (commit, date) = of_git.unwrap_or_else(|| (UNKNOWN.into(), UNKNOWN.into()));
    for (variable, found) in [("LOCKSTEP_COMMIT", commit), ("LOCKSTEP_COMMIT_DATE", date)] {
        println!("cargo:rerun-if-env-changed={variable}");
        let said = std::env::var(variable).unwrap_or(found);
        println!("cargo:rustc-env={variable}={said}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

/// Commit and its UTC date. Ignores a repository around an unpacked archive.
fn of_git() -> Option<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.parent()?;
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // `logs/HEAD` changes with every commit and checkout, also in worktrees. Debug builds do not
    // track it, to avoid a rebuild after each commit, and may report an older commit.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        let log = git(root, &["rev-parse", "--git-path", "logs/HEAD"])?;
        println!("cargo:rerun-if-changed={}", root.join(log).display());
    }
    let commit = git(root, &["rev-parse", "HEAD"])?;
    let date = ["log", "-1", "--date=format-local:%Y-%m-%d", "--format=%cd"];
    Some((commit, git(root, &date)?))
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.current_dir(root).env("TZ", "UTC").args(args);
    let out = command.output().ok().filter(|out| out.status.success())?;
    let text = String::from_utf8(out.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

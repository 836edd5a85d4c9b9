//! Ends child processes of this process, also if this process is killed.
//!
//! Statics are never dropped, and neither is anything in a killed process, so guards alone would
//! leave processes and folders behind. The reaper is a small shell whose standard input is a pipe
//! from this process. When the pipe closes, it kills all registered processes, runs scripts that
//! remove other objects, and removes the folder. A later run removes folders that were kept after
//! failures, after a day.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result};

const SCRIPT: &str = r#"
trap '' INT TERM HUP
pids= folder= last=
find "$1" -mindepth 2 -maxdepth 2 -path "$1/lockstep-*/kept" -mmin +1440 2>/dev/null |
  while read -r kept; do rm -rf "${kept%/kept}"; done
while read -r word arg; do
  case $word in
  started) pids="$pids $arg" ;;
  ended) set -- $pids; pids=; for p; do [ "$p" = "$arg" ] || pids="$pids $p"; done ;;
  folder) folder=$arg ;;
  last) last="$last $arg" ;;
  keep) : >"$folder/kept"; folder= ;;
  esac
done
[ -z "$pids" ] || kill -9 $pids 2>/dev/null
for script in $last; do [ ! -e "$script" ] || sh "$script"; done
[ -z "$folder" ] || rm -rf "$folder"
"#;

struct Reaper {
    pipe: Mutex<std::process::ChildStdin>,
    folder: PathBuf,
}

static REAPER: OnceLock<Reaper> = OnceLock::new();
static START: Mutex<()> = Mutex::new(());

fn reaper() -> Result<&'static Reaper> {
    let _one_at_a_time = START.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(reaper) = REAPER.get() {
        return Ok(reaper);
    }
    let folder = tempfile::Builder::new()
        .prefix("lockstep-")
        .tempdir()
        .context("temporary folder")?
        .keep();
    let mut child = Command::new("sh")
        .args(["-c", SCRIPT, "reaper"])
        .arg(folder.parent().context("a parent")?)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("start the reaper shell")?;
    let pipe = Mutex::new(child.stdin.take().context("the reaper's standard input")?);
    let reaper = REAPER.get_or_init(|| Reaper { pipe, folder });
    reaper.say("folder", &reaper.folder.display().to_string())?;
    Ok(reaper)
}

impl Reaper {
    fn say(&self, word: &str, arg: &str) -> Result<()> {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(pipe, "{word} {arg}").context("write to the reaper")
    }
}

/// Registers a process, which is killed at the end of this process.
pub fn started(pid: u32) -> Result<()> {
    reaper()?.say("started", &pid.to_string())
}

/// Removes a process that has ended and was waited for.
pub fn ended(pid: u32) -> Result<()> {
    reaper()?.say("ended", &pid.to_string())
}

/// Registers a shell script that runs at the end of this process, if it still exists: after the
/// last process is killed and before the folder is removed.
pub fn last(script: &Path) -> Result<()> {
    reaper()?.say("last", &script.display().to_string())
}

/// The folder for all files of this process, removed at its end.
pub fn folder() -> Result<&'static Path> {
    Ok(&reaper()?.folder)
}

/// Keeps the folder for inspection after a failure.
pub fn keep_folder() -> Result<()> {
    reaper()?.say("keep", "")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn when_the_pipe_closes_processes_end_then_scripts_run_and_then_the_folder_goes() {
        let outside = tempfile::tempdir().unwrap();
        let (folder, seen) = (outside.path().join("run"), outside.path().join("seen"));
        fs::create_dir(&folder).unwrap();
        let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
        let (pid, script) = (process.id(), folder.join("last.sh"));
        let (here, there) = (folder.display(), seen.display());
        let text = format!(
            "for i in $(seq 500); do
               case $(cut -d ' ' -f 3 /proc/{pid}/stat) in Z) ls {here} >{there}; break ;; esac
               sleep 0.01
             done"
        );
        fs::write(&script, text).unwrap();

        let mut reaper = Command::new("sh")
            .args(["-c", SCRIPT, "reaper"])
            .arg(outside.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = reaper.stdin.take().unwrap();
        let gone = folder.join("gone.sh");
        for (word, arg) in [("folder", &folder), ("last", &gone), ("last", &script)] {
            writeln!(pipe, "{word} {}", arg.display()).unwrap();
        }
        writeln!(pipe, "started {pid}").unwrap();
        drop(pipe);
        assert!(reaper.wait().unwrap().success());
        assert_eq!(process.wait().unwrap().signal(), Some(9));
        assert_eq!(fs::read_to_string(seen).unwrap(), "last.sh\n");
        assert!(!folder.exists());
    }
}

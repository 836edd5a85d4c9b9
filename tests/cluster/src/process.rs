//! A child process that ends with its guard, with its output in a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::reaper;
use crate::wait::eventually;

/// Program and environment of a process.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Short name, also of the log file.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// The whole environment, apart from `PATH`. `None` for the environment of this process.
    pub env: Option<BTreeMap<String, String>>,
}

/// A running child process, killed on drop.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a process whose output is appended to `<folder>/<name>.log`. Its standard input is a
    /// pipe that stays open until this process ends.
    pub fn start(launch: &Launch, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{}.log", launch.name));
        let out = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .context("log file")?;
        let mut command = Command::new(&launch.program);
        command.args(&launch.args).current_dir(folder);
        if let Some(env) = &launch.env {
            command.env_clear().envs(env);
            command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        }
        let child = command
            // Ctrl-C in the terminal is for this program, which ends its processes in order.
            .process_group(0)
            .stdin(Stdio::piped())
            .stderr(out.try_clone().context("log file")?)
            .stdout(out)
            .spawn()
            .with_context(|| format!("start {}", launch.program.display()))?;
        reaper::started(child.id())?;
        Ok(Self {
            name: launch.name.clone(),
            child,
            log,
        })
    }

    /// Waits for a line of the output with this prefix, and returns the rest of the line.
    pub async fn ready_line(&mut self, prefix: &str, within: Duration) -> Result<String> {
        eventually(
            &format!("{} to say {prefix:?}", self.name),
            within,
            async || {
                if let Some(status) = self.child.try_wait()? {
                    // Further waiting cannot help, so the outer error is not retried.
                    return Ok(Err(anyhow::anyhow!(
                        "{} ended with {status}\n{}",
                        self.name,
                        self.log_tail(20)
                    )));
                }
                let text = std::fs::read_to_string(&self.log)?;
                let rest = text
                    .lines()
                    .find_map(|l| l.strip_prefix(prefix))
                    .context("no such line yet")?;
                Ok(Ok(rest.trim().to_owned()))
            },
        )
        .await?
    }

    /// Ends the process with SIGTERM and waits for its end.
    pub async fn terminate(mut self, within: Duration) -> Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).context("SIGTERM")?;
        eventually(
            &format!("{} to end after SIGTERM", self.name),
            within,
            async || self.child.try_wait()?.context("still running"),
        )
        .await
    }

    /// Stops (SIGSTOP) or continues (SIGCONT) the process.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("signal")
    }

    /// Kills the process with SIGKILL and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("SIGKILL")?;
        self.child.wait().context("wait")?;
        Ok(())
    }

    /// PID of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Exit status, if the process has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// PID of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Path of its log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of its output.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = reaper::ended(self.child.id());
    }
}

/// Path of a program of this workspace, next to the running test or demonstration.
pub fn workspace_binary(name: &str) -> Result<PathBuf> {
    let exe = std::env::current_exe().context("path of this program")?;
    for folder in exe.ancestors().skip(1).take(2) {
        let path = folder.join(name);
        if path.is_file() {
            return Ok(path);
        }
    }
    bail!(
        "{name} is not built: run `make build` (looked beside {})",
        exe.display()
    )
}

/// Runs a program and returns its standard output. Its error output becomes the error.
pub async fn run(
    program: &Path,
    args: &[&str],
    env: &[(&str, &str)],
    within: Duration,
) -> Result<String> {
    let mut command = tokio::process::Command::new(program);
    command
        .args(args)
        .envs(env.iter().copied())
        .kill_on_drop(true)
        .stdin(Stdio::null());
    let what = || format!("{} {}", program.display(), args.join(" "));
    let out = tokio::time::timeout(within, command.output())
        .await
        .with_context(what)?
        .with_context(what)?;
    ensure!(
        out.status.success(),
        "{} ended with {}: {}{}",
        what(),
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Ports below the system's range for outgoing connections, which could use a port before the
/// program does.
const PORTS: std::ops::Range<u32> = 20_000..32_000;

/// A free port of the loopback interface. This process returns no port twice before it has returned
/// all, and other processes start elsewhere in the range.
pub fn free_port() -> Result<u16> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    for _ in PORTS {
        let at = std::process::id()
            .wrapping_mul(997)
            .wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(PORTS.start + at % (PORTS.end - PORTS.start))?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from {} to {} is free", PORTS.start, PORTS.end)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_process_is_not_in_the_process_group_of_the_terminal() {
        let folder = tempfile::tempdir().unwrap();
        let launch = Launch {
            name: "sleep".into(),
            program: "/bin/sleep".into(),
            args: vec!["60".into()],
            env: None,
        };
        let process = Process::start(&launch, folder.path()).unwrap();
        let pid = Pid::from_child(&process.child);
        assert_eq!(rustix::process::getpgid(Some(pid)).unwrap(), pid);
    }

    #[test]
    fn no_port_is_given_out_twice() {
        let ports: BTreeSet<u16> = (0..200).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 200);
    }
}

//! The stand-in control plane of `tests/plane`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::audit::AuditLog;
use crate::cluster::Cluster;
use crate::process::{Launch, Process, run};

/// A folder with `plane` and `kubectl` that is used instead of building them.
const PLANE_FOLDER: &str = "LOCKSTEP_PLANE";
/// Building the control plane takes minutes on a machine that has never done it.
const BUILD: Duration = Duration::from_mins(30);
const START: Duration = Duration::from_mins(1);

impl Cluster {
    /// Makes the API server slow in these words (`tests/plane/README.md`); `None`: as it was.
    pub fn slow_down(&self, how: Option<&str>) -> Result<()> {
        let file = self.folder().join("plane").join("slow.json");
        if let Some(how) = how {
            std::fs::write(file, how)?;
        } else if file.exists() {
            std::fs::remove_file(file)?;
        }
        Ok(())
    }
}

/// The folder with the programs, built unless it is there.
pub(crate) async fn folder(repository: &Path) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(PLANE_FOLDER) {
        return Ok(folder.into());
    }
    let script = repository.join("tests/plane/build.sh");
    let out = run(&script, &[], &[], BUILD)
        .await
        .context("build the control plane")?;
    Ok(out
        .lines()
        .last()
        .context("build.sh prints a folder")?
        .into())
}

/// Starts it with its data below `folder`, where it writes `events`, too, if asked to, and waits
/// until it is ready.
pub(crate) async fn start(
    programs: &Path,
    folder: &Path,
    audit: &AuditLog,
    native_scheduling: bool,
    events: bool,
) -> Result<Process> {
    let mut args = vec![
        format!("--dir={}", data(folder).display()),
        "--port=0".into(),
        format!("--native-scheduling={native_scheduling}"),
    ];
    args.extend(audit.of_stand_in());
    if events {
        args.extend(AuditLog::in_folder(folder).of_api_server(folder)?);
    }
    let launch = Launch {
        name: "plane".into(),
        program: programs.join("plane"),
        args,
        env: None,
    };
    let mut plane = Process::start(&launch, folder)?;
    plane.ready_line("plane: ready", START).await?;
    Ok(plane)
}

/// Where it writes the kubeconfig of the administrator.
pub(crate) fn kubeconfig(folder: &Path) -> PathBuf {
    data(folder).join("kubeconfig")
}

fn data(folder: &Path) -> PathBuf {
    folder.join("plane")
}

//! The product's images from development binaries, with their shared libraries.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use lockstep_cluster::process::{run, workspace_binary};
use lockstep_containers::containerd::{basic, image, linked, tools};
use lockstep_containers::fleet::{NONROOT, static_program};
use lockstep_containers::images::built;
use lockstep_containers::job::{TRAINER, TRAINER_IMAGE};
use xtask::image::{Entry, Image};

const CALL: Duration = Duration::from_mins(1);
const PROGRAMS: [&str; 2] = ["lockstep-manager", "lockstep-agent"];
const SUPERVISOR: &str = "lockstep-run";

/// Additional images for tests: sandboxes, a shell, the trainer.
pub(crate) async fn of_tests() -> Result<Vec<Image>> {
    let mut entries = tools().await?;
    entries.push(fixed(TRAINER)?);
    let trainer = image(
        TRAINER_IMAGE,
        &["/usr/bin/lockstep-trainer"],
        NONROOT,
        entries,
    )?;
    // The image of samples/06-without-accelerators.yaml.
    let sample = named(TRAINER, vec![fixed(TRAINER)?])?;
    Ok(basic()
        .await?
        .into_iter()
        .chain([trainer, sample])
        .collect())
}

/// The image of recorded scenarios: busybox with the tools that their commands use.
pub(crate) fn of_scenarios() -> Result<Image> {
    const TOOLS: [&str; 10] = [
        "cat", "httpd", "ls", "mkdir", "rm", "sh", "sleep", "tail", "touch", "true",
    ];
    let busybox =
        fs::read("/bin/busybox").context("busybox-static is missing: make container-packages")?;
    let mut entries = vec![Entry::program("bin/busybox", busybox)];
    entries.extend(TOOLS.map(|tool| Entry::link(&format!("bin/{tool}"), "busybox")));
    // A folder is created with its first file.
    entries.push(Entry::text("tmp/empty", Vec::new()));
    image("lockstep.test/busybox:1", &["/bin/sh"], "0:0", entries)
}

/// Archives that `make image` has written.
pub(crate) fn released() -> Result<Vec<PathBuf>> {
    let all = PROGRAMS.into_iter().chain([SUPERVISOR]);
    all.map(|program| Ok(built(program)?.archive)).collect()
}

/// Images of the programs as `make build` and `make static` have left them, under the names that the
/// manifests in `config/` have.
pub(crate) async fn packed(folder: &Path) -> Result<Vec<Image>> {
    let mut images = Vec::new();
    for program in PROGRAMS {
        let entries = stripped(program, folder).await?;
        images.push(named(program, entries)?);
    }
    images.push(named(SUPERVISOR, vec![fixed(SUPERVISOR)?])?);
    Ok(images)
}

/// The name that the manifests in `config/` give to the image of a program.
pub(crate) fn product_image(program: &str) -> String {
    format!(
        "ghcr.io/lockstep-dev/{program}:v{}",
        env!("CARGO_PKG_VERSION")
    )
}

fn named(program: &str, entries: Vec<Entry>) -> Result<Image> {
    image(
        &product_image(program),
        &[&format!("/usr/bin/{program}")],
        NONROOT,
        entries,
    )
}

/// A static program of the workspace.
fn fixed(name: &str) -> Result<Entry> {
    let path = static_program(name)?;
    let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
    Ok(Entry::program(&format!("usr/bin/{name}"), bytes))
}

/// A program without debug information, and its libraries.
async fn stripped(name: &str, folder: &Path) -> Result<Vec<Entry>> {
    let program = workspace_binary(name)?.display().to_string();
    let small = folder.join(name);
    let out = small.display().to_string();
    run(Path::new("strip"), &["-o", &out, &program], &[], CALL).await?;
    linked(&[(format!("usr/bin/{name}"), small)]).await
}

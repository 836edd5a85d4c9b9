//! `kubectl lockstep` as a static program, with the licences of the crates linked into it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::image::{Dependencies, Target, build, check};

const PACKAGE: &str = "lockstep-cli";
/// Program name, by which kubectl finds the plugin.
pub(crate) const PROGRAM: &str = "kubectl-lockstep";

/// Builds the program into a folder for the target below `out`. Returns its path and size in bytes.
pub fn plugin(root: &Path, target: Target, out: &Path) -> Result<(PathBuf, u64)> {
    let programs = build(root, target, &[PACKAGE])?;
    let out = out.join(target.architecture());
    fs::create_dir_all(&out).with_context(|| format!("create {}", out.display()))?;
    let program = out.join(PROGRAM);
    let from = programs.join(PROGRAM);
    let content = fs::read(&from).with_context(|| format!("read {}", from.display()))?;
    check(&content, target).with_context(|| format!("{}", from.display()))?;
    let size = fs::copy(&from, &program).with_context(|| format!("copy {}", from.display()))?;
    fs::copy(root.join("LICENSE"), out.join("LICENSE")).context("the licence")?;
    let notices = Dependencies::of(root, target)?.notices(PACKAGE)?;
    fs::write(out.join("NOTICES"), notices).context("the notices")?;
    Ok((program, size))
}

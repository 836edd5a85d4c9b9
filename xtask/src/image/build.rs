//! Builds static programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Target {
    Amd64,
    Arm64,
}

impl Target {
    pub fn here() -> Self {
        if cfg!(target_arch = "aarch64") {
            Self::Arm64
        } else {
            Self::Amd64
        }
    }

    /// Rust target: static, with musl.
    pub fn triple(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-musl",
            Self::Arm64 => "aarch64-unknown-linux-musl",
        }
    }

    /// OCI name.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }
}

/// Builds release programs of the packages and returns their folder. Local paths are remapped, so
/// builds are reproducible.
pub fn build(root: &Path, target: Target, packages: &[&str]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let folder =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let mut command = Command::new(cargo);
    command.current_dir(root).args([
        "build",
        "--release",
        "--locked",
        "--target",
        target.triple(),
    ]);
    command.arg("--target-dir").arg(&folder);
    for package in packages {
        command.args(["-p", package]);
    }
    command
        .env("RUSTFLAGS", rust_flags(root)?)
        .env("SOURCE_DATE_EPOCH", "0");
    // Debug information is stripped later, but that of C code would still contain local paths.
    command.env(
        format!("CFLAGS_{}", target.triple().replace('-', "_")),
        "-g0",
    );
    if target != Target::here() {
        cross(root, target, &mut command)?;
    }
    let status = command.status().context("start cargo")?;
    ensure!(
        status.success(),
        "cargo build for {} failed: {status}",
        target.triple()
    );
    Ok(folder.join(target.triple()).join("release"))
}

/// Cross-compilation. Rust provides linker and musl; zig compiles C code with the headers of that
/// musl.
fn cross(root: &Path, target: Target, command: &mut Command) -> Result<()> {
    let install = root.join("xtask/zig/install.sh");
    let mut install = Command::new(install);
    let out = install.stderr(Stdio::inherit()).output();
    let out = out.context("start xtask/zig/install.sh")?;
    ensure!(out.status.success(), "no zig: {}", out.status);
    let printed = String::from_utf8(out.stdout).context("the path of zig")?;
    let zig = printed.lines().last().context("a path of zig")?;
    let triple = target.triple().replace('-', "_");
    command
        .env("LOCKSTEP_ZIG", zig)
        .env(format!("CC_{triple}"), root.join("xtask/zig/cc"))
        .env(
            format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase()),
            "rust-lld",
        );
    Ok(())
}

fn rust_flags(root: &Path) -> Result<String> {
    let cargo_home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => std::env::home_dir()
            .context("a home folder")?
            .join(".cargo"),
    };
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    Ok([
        remap(root, "/src"),
        remap(&cargo_home, "/cargo"),
        "-Cstrip=symbols".into(),
    ]
    .join(" "))
}

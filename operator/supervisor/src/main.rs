//! `lockstep-run`: the supervisor inside a training container (`docs/supervisor.md`).

mod args;
mod child;
mod clock;
mod files;
mod handlers;
mod init;
mod link;
mod log;
mod oom;
mod probe;
mod progress;
mod requests;
mod shared_memory;
mod signals;
mod state;
mod supervise;
mod tree;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::args::{Call, HELP};
use crate::log::log_line;

/// Exit code for failures of the supervisor itself, as in `env` and `nohup`.
const OWN_FAILURE: u8 = 125;

fn main() -> ExitCode {
    let home = std::env::current_exe()
        .ok()
        .and_then(|program| program.parent().map(Path::to_owned));
    let call = args::parse(
        std::env::args_os().skip(1),
        home.unwrap_or_else(|| PathBuf::from(".")),
    );
    let code = match call {
        Ok(Call::Help) => print(HELP),
        Ok(Call::Version) => print(&format!("lockstep-run {}\n", lockstep_version::LONG)),
        Ok(Call::Init(folder)) => init::init(&folder)
            .map(|()| 0)
            .map_err(|error| error.to_string()),
        Ok(Call::Exec(options)) => supervise::supervise(options).map_err(|error| error.to_string()),
        Ok(Call::Probe(options)) => Ok(probe::probe(&options)),
        Err(error) => Err(error),
    };
    code.unwrap_or_else(|error| {
        log_line(&error);
        OWN_FAILURE
    })
    .into()
}

fn print(text: &str) -> Result<u8, String> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .map(|()| 0)
        .map_err(|error| error.to_string())
}

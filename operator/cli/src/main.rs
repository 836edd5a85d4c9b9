//! `kubectl-lockstep`: arguments in, exit code out. The library has the rest.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use lockstep_cli::args::Args;
use lockstep_cli::commands;
use lockstep_cli::outcome::Outcome;

const ERROR: u8 = 1;
/// Exit code for a negative result: the workload does not fit, or the installation is unhealthy.
const NO: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(words) = commands::is_completion_request(&words) {
        let done = commands::complete(words);
        return ExitCode::from(u8::from(done.is_err()));
    }
    // A negative result has exit code 2, which clap uses for wrong usage.
    let args = Args::parse_line().unwrap_or_else(|error| {
        let code = if error.use_stderr() { ERROR } else { 0 };
        // The reader has closed the pipe.
        let _ = error.print();
        std::process::exit(code.into())
    });
    match commands::run(&args, wall_clock) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::DoesNotFit | Outcome::Unhealthy) => ExitCode::from(NO),
        Err(error) => {
            // The reader may have closed standard error.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::from(ERROR)
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the process reads its wall clock"
)]
fn wall_clock() -> chrono::DateTime<chrono::Utc> {
    chrono::Utc::now()
}

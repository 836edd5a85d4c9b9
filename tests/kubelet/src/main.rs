//! `lockstep-hollow` simulates nodes for an API server.

use std::io::Read;
use std::process::ExitCode;

use anyhow::{Result, bail};
use chrono::Utc;
use clap::Parser;
use lockstep_common::signals::ended_by_signal;
use lockstep_kubelet::clock::Clock;
use lockstep_kubelet::hollow::{Options, run};
use tokio::sync::oneshot;

#[tokio::main]
async fn main() -> ExitCode {
    match play(Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockstep-hollow: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs until a signal or the end of the parent process.
async fn play(options: Options) -> Result<()> {
    options.log.start()?;
    let ended = ended_by_signal()?;
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the process reads its wall clock"
    )]
    let clock = Clock::starting_at(Utc::now());
    let watch_stdin = options.exit_with_stdin;
    tokio::select! {
        biased;
        _ = ended => Ok(()),
        () = stdin_closed(), if watch_stdin => Ok(()),
        ended = run(options, clock) => {
            ended?;
            bail!("nobody plays the nodes any more");
        }
    }
}

/// Returns when standard input ends, which is at the end of the parent process. A separate thread
/// reads, because a read of standard input cannot be cancelled and must not delay the end of the
/// process.
async fn stdin_closed() {
    let (closed, wait) = oneshot::channel();
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while std::io::stdin().read(&mut rest).is_ok_and(|n| n > 0) {}
        // Has no receiver if the process is already ending.
        let _ = closed.send(());
    });
    let _ = wait.await;
}

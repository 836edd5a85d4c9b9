//! `lockstep-hollow`: plays nodes against an API server.

use std::io::Read;
use std::process::ExitCode;

use chrono::Utc;
use clap::Parser;
use lockstep_agent::args::LogFormat;
use lockstep_kubelet::clock::Clock;
use lockstep_kubelet::hollow::{Options, run};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing::error;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    log(&options);
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the process reads its wall clock"
    )]
    let clock = Clock::starting_at(Utc::now());
    let watch_stdin = options.exit_with_stdin;
    tokio::select! {
        biased;
        () = terminated() => ExitCode::SUCCESS,
        () = stdin_closed(), if watch_stdin => ExitCode::SUCCESS,
        ended = run(options, clock) => {
            if let Err(error) = ended {
                error!("{error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn log(options: &Options) {
    let filter =
        EnvFilter::try_new(&options.log.log_level).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match options.log.log_format {
        LogFormat::Text => builder.with_ansi(false).init(),
        LogFormat::Json => builder.json().init(),
    }
}

async fn terminated() {
    let (Ok(mut term), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Returns when standard input ends, which is when the parent process is gone. A thread of its own
/// reads, because a read of standard input cannot be cancelled and must not hold up the end of the
/// process.
async fn stdin_closed() {
    let (closed, wait) = oneshot::channel();
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while std::io::stdin().read(&mut rest).is_ok_and(|n| n > 0) {}
        // Nobody waits any more when the process is ending anyway.
        let _ = closed.send(());
    });
    let _ = wait.await;
}

//! Commands, from arguments to exit code.

/// Prints a line on standard error, which the reader may have closed.
macro_rules! note {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod bug_report;
mod complete;
mod convert;
mod dashboard;
mod engine;
mod kubectl;
mod logs;
mod read;
mod show;
mod write;

use anyhow::{Context, Result};

use crate::args::{Args, Command, connection_help};
use crate::change::FieldEdit;
use crate::cluster::ClusterReader;
use crate::outcome::Outcome;
pub use complete::{complete, is_completion_request};
pub use show::WallClock;

pub fn run(args: &Args, clock: WallClock) -> Result<Outcome> {
    match &args.command {
        Command::Completion(command) => return complete::completion(command),
        Command::Get(command) => return kubectl::run(&args.connection, kubectl::get(command)),
        Command::Options(_) => {
            show::write(&connection_help())?;
            return Ok(Outcome::Done);
        }
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(dispatch(args, clock))
}

async fn dispatch(args: &Args, clock: WallClock) -> Result<Outcome> {
    match &args.command {
        // Files and snapshots need no cluster.
        Command::Convert(command) => return convert::convert(&args.connection, command).await,
        Command::Whatif(command) => {
            return engine::whatif(&args.connection, command, clock).await;
        }
        Command::Dashboard(command) => {
            return dashboard::dashboard(&args.connection, command, clock).await;
        }
        Command::Version(command) => return read::version(&args.connection, command, clock).await,
        _ => {}
    }
    let cluster = ClusterReader::connect(&args.connection).await?;
    let run = |words| kubectl::run(&args.connection, words);
    match &args.command {
        Command::Status(args) => read::status(&cluster, args, clock).await,
        Command::Queue(args) => read::queue(&cluster, args, clock).await,
        Command::Explain(args) => read::explain(&cluster, args, clock).await,
        Command::Restart(args) => {
            write::apply_edit(&cluster, args, FieldEdit::Restart, clock()).await
        }
        Command::Suspend(args) => {
            write::apply_edit(&cluster, args, FieldEdit::Suspend, clock()).await
        }
        Command::Resume(args) => {
            write::apply_edit(&cluster, args, FieldEdit::Resume, clock()).await
        }
        Command::Checkpoint(args) => write::checkpoint(&cluster, args, clock).await,
        Command::Logs(args) => logs::logs(&cluster, args).await,
        Command::Exec(command) => run(kubectl::exec(&cluster, command).await?),
        Command::Cp(command) => run(kubectl::cp(&cluster, command).await?),
        Command::PortForward(command) => run(kubectl::port_forward(&cluster, command).await?),
        Command::Top(args) => read::top(&cluster, args, clock).await,
        Command::Agents(args) => read::agents(&cluster, args, clock).await,
        Command::Nodes(args) => read::nodes(&cluster, args, clock).await,
        Command::Doctor(args) => read::doctor(&cluster, args, clock).await,
        Command::BugReport(args) => bug_report::bug_report(&cluster, args, clock).await,
        Command::Snapshot(args) => engine::snapshot(&cluster, args, clock).await,
        // Handled before the connection.
        Command::Whatif(_)
        | Command::Dashboard(_)
        | Command::Version(_)
        | Command::Completion(_)
        | Command::Options(_)
        | Command::Get(_)
        | Command::Convert(_) => Ok(Outcome::Done),
    }
}

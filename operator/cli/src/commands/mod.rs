//! Commands, from arguments to exit code.

mod complete;
mod convert;
mod engine;
mod logs;
mod look;
mod show;
mod write;

use anyhow::{Context, Result};

use crate::args::{Args, Command};
use crate::change::Wish;
use crate::cluster::ClusterReader;
use crate::outcome::Outcome;
pub use complete::{asks_for_completion, complete};
pub use show::WallClock;

pub fn run(args: &Args, clock: WallClock) -> Result<Outcome> {
    if let Command::Completion(wanted) = &args.command {
        return complete::completion(wanted);
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
        Command::Convert(wanted) => return convert::convert(&args.connection, wanted).await,
        Command::Whatif(asked) => {
            return engine::whatif(&args.connection, asked, clock).await;
        }
        Command::Version(asked) => return look::version(&args.connection, asked, clock).await,
        _ => {}
    }
    let cluster = ClusterReader::connect(&args.connection).await?;
    match &args.command {
        Command::Status(args) => look::status(&cluster, args, clock).await,
        Command::Queue(args) => look::queue(&cluster, args, clock).await,
        Command::Explain(args) => look::explain(&cluster, args, clock).await,
        Command::Restart(args) => write::grant(&cluster, args, Wish::Restart, clock()).await,
        Command::Suspend(args) => write::grant(&cluster, args, Wish::Suspend, clock()).await,
        Command::Resume(args) => write::grant(&cluster, args, Wish::Resume, clock()).await,
        Command::Checkpoint(args) => write::checkpoint(&cluster, args, clock).await,
        Command::Logs(args) => logs::logs(&cluster, args).await,
        Command::Top(args) => look::top(&cluster, args, clock).await,
        Command::Agents(args) => look::agents(&cluster, args, clock).await,
        Command::Doctor(args) => look::doctor(&cluster, args, clock).await,
        Command::Snapshot(args) => engine::snapshot(&cluster, args, clock).await,
        // Handled before the connection.
        Command::Whatif(_) | Command::Version(_) | Command::Completion(_) | Command::Convert(_) => {
            Ok(Outcome::Done)
        }
    }
}

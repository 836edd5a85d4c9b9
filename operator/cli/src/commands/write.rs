//! Commands that write one field.

use anyhow::Result;
use chrono::{DateTime, Utc};

use super::show::{WallClock, write};
use crate::args::{CheckpointArgs, DryRunArg, WriteArgs};
use crate::change::{Wish, change};
use crate::cluster::ClusterReader;
use crate::outcome::Outcome;

pub async fn checkpoint(
    cluster: &ClusterReader,
    args: &CheckpointArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let at = args.at.unwrap_or_else(clock);
    grant(cluster, &args.write, Wish::Checkpoint(at), clock()).await
}

pub async fn grant(
    cluster: &ClusterReader,
    args: &WriteArgs,
    wish: Wish,
    now: DateTime<Utc>,
) -> Result<Outcome> {
    let namespace = args.namespace.as_deref().unwrap_or(cluster.namespace());
    let workload = cluster.workload(namespace, &args.name).await?;
    let name = format!("trainingworkload {namespace}/{}", args.name);
    let Some(change) = change(&workload, wish, now)? else {
        write(&format!("{name}: no change, {}\n", wish.unchanged()))?;
        return Ok(Outcome::Done);
    };
    let how = match args.dry_run {
        DryRunArg::None => "",
        DryRunArg::Client => " (client dry run: nothing was sent)",
        DryRunArg::Server => " (server dry run: the API server would accept it)",
    };
    if args.dry_run != DryRunArg::Client {
        let dry_run = args.dry_run == DryRunArg::Server;
        cluster.write(&workload, &change, dry_run).await?;
    }
    let from = match &change.from {
        serde_json::Value::Null => "unset".to_owned(),
        value => value.to_string(),
    };
    write(&format!(
        "{name}: {} {from} -> {}: {}{how}\n",
        change.field, change.to, change.effect
    ))?;
    Ok(Outcome::Done)
}

//! Commands that write one field.

use anyhow::Result;
use chrono::{DateTime, Utc};

use super::show::{WallClock, write};
use crate::args::{CheckpointArgs, DryRunArg, WriteArgs};
use crate::change::{FieldChange, FieldEdit, change};
use crate::cluster::ClusterReader;
use crate::outcome::Outcome;
use crate::problem::Problem;

/// Most writes of a command that meet another version of the workload, as many as in client-go's
/// `retry.DefaultRetry`.
const TRIES: usize = 5;

pub async fn checkpoint(
    cluster: &ClusterReader,
    args: &CheckpointArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let at = args.at.unwrap_or_else(clock);
    apply_edit(cluster, &args.write, FieldEdit::Checkpoint(at), clock()).await
}

pub async fn apply_edit(
    cluster: &ClusterReader,
    args: &WriteArgs,
    edit: FieldEdit,
    now: DateTime<Utc>,
) -> Result<Outcome> {
    let namespace = args.namespace.as_deref().unwrap_or(cluster.namespace());
    let name = format!("trainingworkload {namespace}/{}", args.name);
    let Some(change) = write_with_retries(cluster, namespace, args, edit, now).await? else {
        write(&format!("{name}: no change, {}\n", edit.unchanged()))?;
        return Ok(Outcome::Done);
    };
    let how = match args.dry_run {
        DryRunArg::None => "",
        DryRunArg::Client => " (client dry run: nothing was sent)",
        DryRunArg::Server => " (server dry run: the API server would accept it)",
    };
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

/// Writes the field and returns the change; `None` if the field has the value. The manager may
/// write the status at any time: then the workload is read again, and the write is repeated unless
/// someone else changed the field or created the workload anew.
async fn write_with_retries(
    cluster: &ClusterReader,
    namespace: &str,
    args: &WriteArgs,
    edit: FieldEdit,
    now: DateTime<Utc>,
) -> Result<Option<FieldChange>> {
    let mut read = None;
    for _ in 0..TRIES {
        let workload = cluster.workload(namespace, &args.name).await?;
        let Some(change) = change(&workload, edit, now)? else {
            return Ok(None);
        };
        let now_read = (workload.metadata.uid.clone(), change.from.clone());
        if *read.get_or_insert_with(|| now_read.clone()) != now_read {
            break;
        }
        if args.dry_run == DryRunArg::Client {
            return Ok(Some(change));
        }
        let dry_run = args.dry_run == DryRunArg::Server;
        match cluster.write(&workload, &change, dry_run).await {
            Err(Problem::Changed { .. }) => {}
            result => return Ok(result.map(|()| Some(change))?),
        }
    }
    Err(Problem::Changed {
        name: args.name.clone(),
    }
    .into())
}

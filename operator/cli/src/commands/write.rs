//! Commands that write one field.

use std::time::Duration;

use anyhow::{Result, bail};
use chrono::{DateTime, Utc};
use kube::ResourceExt;
use lockstep_api::TrainingWorkload;

use super::show::{WallClock, write};
use crate::args::{CheckpointArgs, DryRunArg, WriteArgs};
use crate::change::{FieldChange, FieldEdit, change, request_id};
use crate::cluster::ClusterReader;
use crate::outcome::Outcome;
use crate::problem::Problem;
use crate::requests::{PendingRequest, RequestProgress};

/// Most writes of a command that meet another version of the workload, as many as in client-go's
/// `retry.DefaultRetry`.
const TRIES: usize = 5;
/// Interval between reads while a command waits for answers.
const POLL: Duration = Duration::from_secs(1);

pub async fn checkpoint(
    cluster: &ClusterReader,
    args: &CheckpointArgs,
    clock: WallClock,
) -> Result<Outcome> {
    if args.record {
        let at = args.at.unwrap_or_else(clock);
        let edit = FieldEdit::RecordCheckpoint(at);
        return apply_edit(cluster, &args.write, edit, clock()).await;
    }
    let now = clock();
    let edit = FieldEdit::RequestCheckpoint(now);
    let written = edited(cluster, &args.write, edit, now).await?;
    if let Some((before, _)) = written
        && args.wait
        && args.write.dry_run == DryRunArg::None
    {
        let mut request = PendingRequest::new(request_id(now), &before);
        let answer = answers(cluster, &before, &mut request);
        match tokio::time::timeout(args.timeout, answer).await {
            Ok(result) => result?,
            Err(_) => bail!(
                "no answer within {}s; `kubectl lockstep status {}` shows the request",
                args.timeout.as_secs(),
                args.write.name
            ),
        }
    }
    Ok(Outcome::Done)
}

/// Prints the answers to a request until all have come.
async fn answers(
    cluster: &ClusterReader,
    workload: &TrainingWorkload,
    request: &mut PendingRequest,
) -> Result<()> {
    let namespace = workload.namespace().unwrap_or_default();
    let mut last = String::new();
    loop {
        let workload = cluster.workload(&namespace, &workload.name_any()).await?;
        let state = request.read(&workload)?;
        for line in state.lines {
            write(&format!("{line}\n"))?;
        }
        match state.progress {
            RequestProgress::Answered(result) => return Ok(result?),
            RequestProgress::Waiting(progress) if progress != last => {
                note!("{progress}");
                last = progress;
            }
            RequestProgress::Waiting(_) => {}
        }
        tokio::time::sleep(POLL).await;
    }
}

pub async fn apply_edit(
    cluster: &ClusterReader,
    args: &WriteArgs,
    edit: FieldEdit,
    now: DateTime<Utc>,
) -> Result<Outcome> {
    edited(cluster, args, edit, now).await?;
    Ok(Outcome::Done)
}

/// Writes the field, prints the change, and returns it with the workload before the write.
async fn edited(
    cluster: &ClusterReader,
    args: &WriteArgs,
    edit: FieldEdit,
    now: DateTime<Utc>,
) -> Result<Option<(TrainingWorkload, FieldChange)>> {
    let namespace = args.namespace.as_deref().unwrap_or(cluster.namespace());
    let name = format!("trainingworkload {namespace}/{}", args.name);
    let written = write_with_retries(cluster, namespace, args, edit, now).await?;
    let Some((_, change)) = &written else {
        write(&format!("{name}: no change, {}\n", edit.unchanged()))?;
        return Ok(None);
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
    Ok(written)
}

/// Writes the field and returns the workload and the change; `None` if the field has the value. The manager may
/// write the status at any time: then the workload is read again, and the write is repeated unless
/// someone else changed the field or created the workload anew.
async fn write_with_retries(
    cluster: &ClusterReader,
    namespace: &str,
    args: &WriteArgs,
    edit: FieldEdit,
    now: DateTime<Utc>,
) -> Result<Option<(TrainingWorkload, FieldChange)>> {
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
            return Ok(Some((workload, change)));
        }
        let dry_run = args.dry_run == DryRunArg::Server;
        match cluster.write(&workload, &change, dry_run).await {
            Err(Problem::Changed { .. }) => {}
            result => return Ok(result.map(|()| Some((workload, change)))?),
        }
    }
    Err(Problem::Changed {
        name: args.name.clone(),
    }
    .into())
}

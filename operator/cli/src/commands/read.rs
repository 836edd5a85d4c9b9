use anyhow::Result;

use super::show::{WallClock, show, watch};
use crate::args::{
    AgentsArgs, Connection, DoctorArgs, ExplainArgs, Format, NodesArgs, QueueArgs, StatusArgs,
    TopArgs, VersionArgs,
};
use crate::cluster::ClusterReader;
use crate::doctor::{Check, canary_manifest, canary_not_allowed, canary_not_created};
use crate::outcome::Outcome;
use crate::problem::Problem;
use crate::reports::{self, Noted};
use crate::roles::remedy;
use crate::version::VersionReport;
use crate::view::View;

async fn show_or_watch<V: View>(
    cluster: &ClusterReader,
    namespace: Option<&str>,
    again: bool,
    format: Format,
    clock: WallClock,
    read: impl AsyncFn() -> Result<V>,
) -> Result<Outcome> {
    if again {
        watch(cluster, namespace, format, clock, read).await?;
    } else {
        show(&read().await?, format, clock)?;
    }
    Ok(Outcome::Done)
}

pub async fn status(
    cluster: &ClusterReader,
    args: &StatusArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let namespace = args.namespace.as_deref().unwrap_or(cluster.namespace());
    let read = async || reports::status(cluster, namespace, &args.name, clock()).await;
    show_or_watch(
        cluster,
        Some(namespace),
        args.watch,
        args.output.format,
        clock,
        read,
    )
    .await
}

/// Without a cluster, shows the version of this program and the error.
pub async fn version(
    connection: &Connection,
    args: &VersionArgs,
    clock: WallClock,
) -> Result<Outcome> {
    if args.client {
        show(&VersionReport::of_client(), args.output.format, clock)?;
        return Ok(Outcome::Done);
    }
    let read = async { ClusterReader::connect(connection).await?.versions().await };
    let (report, problem) = match read.await {
        Ok(report) => (report, Ok(Outcome::Done)),
        Err(problem) => (VersionReport::of_client(), Err(problem.into())),
    };
    show(&report, args.output.format, clock)?;
    problem
}

pub async fn top(cluster: &ClusterReader, args: &TopArgs, clock: WallClock) -> Result<Outcome> {
    let namespace = args.scope.namespace.as_deref();
    let labels = args.selector.as_deref();
    let report = noted(reports::top(cluster, namespace, labels).await?);
    show(&report, args.output.format, clock)?;
    Ok(Outcome::Done)
}

pub async fn agents(
    cluster: &ClusterReader,
    args: &AgentsArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let report = reports::agents(cluster, args.agent_namespace.as_deref()).await?;
    show(&report, args.output.format, clock)?;
    Ok(Outcome::Done)
}

pub async fn nodes(cluster: &ClusterReader, args: &NodesArgs, clock: WallClock) -> Result<Outcome> {
    let namespace = args.manager_namespace.as_deref();
    let report = noted(reports::nodes(cluster, namespace, clock()).await?);
    show(&report, args.output.format, clock)?;
    Ok(Outcome::Done)
}

pub async fn doctor(
    cluster: &ClusterReader,
    args: &DoctorArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let namespace = args.namespace.as_deref().unwrap_or(cluster.namespace());
    let agents = args.agent_namespace.as_deref();
    let mut diagnosis = reports::doctor(cluster, namespace, agents, clock()).await?;
    if args.canary {
        diagnosis
            .checks
            .push(canary(cluster, namespace, args, clock).await?);
    }
    show(&diagnosis, args.output.format, clock)?;
    Ok(if diagnosis.failed() {
        Outcome::Unhealthy
    } else {
        Outcome::Done
    })
}

async fn canary(
    cluster: &ClusterReader,
    namespace: &str,
    args: &DoctorArgs,
    clock: WallClock,
) -> Result<Check> {
    let workload = canary_manifest(namespace, &args.canary_image, args.timeout)?;
    let stop = stop()?;
    match cluster.canary(&workload, args.timeout, clock, stop).await {
        Ok(canary) => Ok(canary.check(args.timeout)),
        Err(Problem::NotAllowed { message }) if message.contains(" cannot create ") => {
            Ok(canary_not_allowed(&remedy(&message)))
        }
        // A webhook or a quota refuses with the same code as a missing right.
        Err(Problem::NotAllowed { message } | Problem::Refused(message)) => {
            Ok(canary_not_created(&message))
        }
        Err(other) => Ok(canary_not_created(&other.to_string())),
    }
}

/// Ends at a signal to stop. From now on, signals do not end the process.
#[cfg(unix)]
fn stop() -> Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "as on Unix")]
fn stop() -> Result<impl Future<Output = ()>> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}

pub async fn explain(
    cluster: &ClusterReader,
    args: &ExplainArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let namespace = args.namespace.as_deref().unwrap_or(cluster.namespace());
    let report = reports::explain(cluster, namespace, &args.name).await?;
    show(&report, args.output.format, clock)?;
    Ok(Outcome::Done)
}

pub async fn queue(cluster: &ClusterReader, args: &QueueArgs, clock: WallClock) -> Result<Outcome> {
    let namespace = args.scope.namespace.as_deref();
    if let Some(namespace) = namespace {
        note!(
            "warning: only namespace {namespace} is included; gangs of other namespaces may be ahead of these gangs"
        );
    }
    let selector = args.selector.as_deref();
    let read = async || {
        Ok(noted(
            reports::queue(cluster, namespace, selector, clock()).await?,
        ))
    };
    show_or_watch(
        cluster,
        namespace,
        args.watch,
        args.output.format,
        clock,
        read,
    )
    .await
}

/// Prints the warnings of a report.
fn noted<T>((report, notes): Noted<T>) -> T {
    for note in notes {
        note!("{note}");
    }
    report
}

//! `logs`.

use anyhow::{Result, anyhow};
use futures_util::StreamExt;

use super::show::write;
use crate::args::LogsArgs;
use crate::cluster::{ClusterReader, HowMuch};
use crate::logs::{Wanted, sources};
use crate::outcome::Outcome;
use crate::problem::root;

pub async fn logs(cluster: &ClusterReader, args: &LogsArgs) -> Result<Outcome> {
    let namespace = args.namespace.as_deref().unwrap_or(cluster.namespace());
    let workload = cluster.workload(namespace, &args.name).await?;
    let pods = cluster.pods_of(&workload).await?;
    let wanted = Wanted {
        group: args.group.clone(),
        rank: args.rank,
        failed: args.failed,
        all: args.all,
        container: args.container.clone(),
        previous: args.previous,
    };
    let sources = sources(&workload, &pods, &wanted)?;
    let how_much = HowMuch {
        follow: args.follow,
        tail: args.tail,
        since_seconds: args
            .since
            .map(|s| i64::try_from(s.as_secs()).unwrap_or(i64::MAX)),
    };
    let mut lines = cluster.logs(namespace, &sources, how_much).await?;
    while let Some((number, line)) = lines.next().await {
        let line = line.map_err(|why| anyhow!("the log has broken off: {}", root(&why)))?;
        let prefix = sources.get(number).filter(|_| args.prefix);
        let open = match prefix {
            Some(source) => write(&format!("[{}] {line}\n", source.prefix))?,
            None => write(&format!("{line}\n"))?,
        };
        if !open {
            break;
        }
    }
    Ok(Outcome::Done)
}

//! One trouble after the other, and what became of the members.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use lockstep_api::workload::HistoryEntry;
use lockstep_cluster::audit::MANAGER;
use lockstep_cluster::eventually;
use lockstep_cluster::scenario::{Scenario, node, restarts};
use lockstep_containers::Job;
use lockstep_containers::fleet::LIMIT;
use lockstep_containers::job::now;

use crate::timeline::Timeline;

/// Longer than an agent remembers that it had much to tell.
const CALM: Duration = Duration::from_secs(11);

/// What was seen of a trouble.
pub struct Act {
    /// What happened.
    pub title: &'static str,
    /// Kind of the cause as the manager has found it.
    pub cause: &'static str,
    /// How long all were away, and for what.
    pub timeline: Timeline,
    /// Steps at the trouble, in the checkpoint before it, and at which all went on.
    pub steps: [u64; 3],
}

/// A job that trains, and what was seen of it.
pub struct Show<'a> {
    pub t: &'a Scenario<'a>,
    pub job: &'a Job,
    pub seen: &'a mut Vec<Act>,
}

impl Show<'_> {
    /// Prints where the members are.
    pub async fn members(&self) -> Result<()> {
        println!("\ngpt trains, one container for each member:");
        for pod in self.t.running("gpt").await? {
            println!("  {}  {}", node(&pod), pod.name_any());
        }
        Ok(())
    }

    /// Something happens to the members, and all come back where they are.
    pub async fn in_place(
        &mut self,
        title: &'static str,
        trouble: impl AsyncFnOnce(&[Pod]) -> Result<()>,
    ) -> Result<()> {
        self.act(title, None, trouble).await
    }

    /// Something happens to a node, and its members come back on others.
    pub async fn elsewhere(
        &mut self,
        title: &'static str,
        lost: &str,
        trouble: impl AsyncFnOnce(&[Pod]) -> Result<()>,
    ) -> Result<()> {
        self.act(title, Some(lost), trouble).await
    }

    async fn act(
        &mut self,
        title: &'static str,
        lost: Option<&str>,
        trouble: impl AsyncFnOnce(&[Pod]) -> Result<()>,
    ) -> Result<()> {
        tokio::time::sleep(CALM).await;
        let before = self.t.running("gpt").await?;
        let known = self.restarts_so_far().await?;
        let (_, saved) = self.job.checkpoint()?;
        let step = self.job.step()?;
        println!("\n== {title}: step {step}, last checkpoint {saved}");
        let at = now()?;
        trouble(&before).await?;
        let what = "all to step again";
        let reached = eventually(what, LIMIT, async || self.job.since(at)).await?;
        let status = self.t.restarted("gpt", known + 1).await?;
        let entry = status.history.first().context("history")?;
        let begun_at = self.job.begun_at()?;
        ensure!(begun_at >= saved, "they began at {begun_at}");
        let after = self.t.running("gpt").await?;
        moved(&before, &after, lost)?;
        let act = Act {
            title,
            cause: entry.cause.kind.as_str(),
            timeline: Timeline::new(at, self.ordered(at)?, entry, reached),
            steps: [step, saved, begun_at],
        };
        tell(&act, entry, &before, &after);
        self.seen.push(act);
        Ok(())
    }

    /// When the manager wrote the first order after a time, in microseconds since 1970.
    fn ordered(&self, at: u64) -> Result<i64> {
        let writes = self.t.cluster.audit.writes_by(MANAGER)?;
        let orders = writes
            .iter()
            .filter(|w| w.resource == "restartorders" && w.namespace == self.t.name && w.changed());
        let mut times =
            orders.filter_map(|w| Some(w.time.parse::<Timestamp>().ok()?.as_microsecond()));
        let at = i64::try_from(at)?;
        times
            .find(|time| *time > at)
            .context("no order was written")
    }

    async fn restarts_so_far(&self) -> Result<i64> {
        let workload = self.t.workloads().get("gpt").await?;
        Ok(workload.status.context("a status")?.restarts.total)
    }
}

/// Fails unless the members of the lost node, and nobody else, have new pods on other nodes.
fn moved(before: &[Pod], after: &[Pod], lost: Option<&str>) -> Result<()> {
    ensure!(before.len() == after.len(), "{} members", after.len());
    for (old, new) in before.iter().zip(after) {
        let (name, stays) = (old.name_any(), Some(&*node(old)) != lost);
        let kept = old.uid() == new.uid();
        ensure!(kept == stays, "{name}: kept {kept}");
        ensure!(Some(&*node(new)) != lost, "{name} is on a lost node");
    }
    Ok(())
}

fn tell(act: &Act, entry: &HistoryEntry, before: &[Pod], after: &[Pod]) {
    let cause = &entry.cause;
    let code = cause
        .exit_code
        .map_or(String::new(), |code| format!(", exit code {code}"));
    println!(
        "   {} of {} on {}{code}, reason {}: attempt {}",
        act.cause, cause.pod, cause.node, cause.reason, entry.attempt
    );
    println!("   {}", act.timeline);
    for (old, new) in before.iter().zip(after) {
        if old.uid() != new.uid() {
            println!(
                "   {} -> {} on {}",
                old.name_any(),
                new.name_any(),
                node(new)
            );
        }
    }
    let kept = before
        .iter()
        .zip(after)
        .filter(|(old, new)| old.uid() == new.uid());
    let kept: Vec<i32> = kept.map(|(_, new)| restarts(new)).collect();
    println!(
        "   all {} step again from step {}; {} in the same pods, {} container restarts so far",
        after.len(),
        act.steps[2],
        kept.len(),
        kept.iter().sum::<i32>()
    );
}

//! Results of the arms so far.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lockstep_cluster::audit::Follow;
use lockstep_cluster::cluster::Manager;
use lockstep_cluster::{Cluster, eventually};

use crate::budgets;
use crate::calls::{Calls, has_cause};
use crate::figures::{Arm, HEAD, Round};
use crate::machine::{load, taken};

/// Time for late writes of an arm, so that they are not counted for the next arm.
pub const TRAIL: Duration = Duration::from_secs(3);
/// Time without writes after which the preparation of an arm is complete.
const CALM: Duration = Duration::from_secs(1);
/// Limit of that wait.
const CALM_WITHIN: Duration = Duration::from_mins(5);
/// The arm with limits for its writes.
const SUPERVISED: &str = "supervised restart";
/// The arm with which the others are compared.
const RECREATED: &str = "RecreateGang";

/// Results of the arms so far, and sources of their figures.
pub struct Record {
    /// The leader.
    pub manager: Manager,
    log: Follow,
    arms: Vec<Arm>,
    /// Maximum memory of the manager in MB.
    most_resident: f64,
}

impl Record {
    /// An empty record.
    pub fn new(cluster: &Cluster, manager: Manager) -> Result<Self> {
        Ok(Self {
            manager,
            log: cluster.audit.follow()?,
            arms: Vec::new(),
            most_resident: 0.0,
        })
    }

    /// Skips the writes so far, which prepared an arm, and later writes caused by them, such as the
    /// scheduler's Events: returns after a second without writes.
    pub async fn skip(&mut self) -> Result<()> {
        let mut last = Instant::now();
        eventually("the writes to end", CALM_WITHIN, async || {
            if self.log.added()?.iter().any(has_cause) {
                last = Instant::now();
            }
            ensure!(last.elapsed() >= CALM, "there are some");
            Ok(())
        })
        .await
    }

    /// Records a round of an arm, with the writes since the last round.
    pub async fn note(&mut self, name: &str, round: Round) -> Result<()> {
        tokio::time::sleep(TRAIL).await;
        let round = Round {
            calls: Calls::since(&mut self.log)?,
            ..round
        };
        let manager = taken(self.manager.process.id())?;
        self.most_resident = self.most_resident.max(manager.most_resident);
        println!(
            "{name}: {:.2} s; manager {:.0} MB (most {:.0}), {:.1} s of CPU so far; load {}",
            round.took.as_secs_f64(),
            manager.resident,
            manager.most_resident,
            manager.cpu,
            load()?
        );
        if let Some(phases) = &round.phases {
            println!("    {phases:?}; order at agents: {}", round.delivery());
        }
        for line in round.calls.lines() {
            println!("    {line}");
        }
        match self.arms.last_mut().filter(|arm| arm.name == name) {
            Some(arm) => arm.rounds.push(round),
            None => self.arms.push(Arm {
                name: name.to_owned(),
                rounds: vec![round],
            }),
        }
        Ok(())
    }

    /// Number of writes of an identity in the last round.
    pub fn writes_of_last_round(&self, who: &str) -> usize {
        let last = self.arms.last().and_then(|arm| arm.rounds.last());
        last.map_or(0, |round| round.calls.by(who))
    }

    fn arm(&self, name: &str) -> Option<&Arm> {
        self.arms.iter().find(|a| a.name == name)
    }

    /// The table, and the limits of restarts with supervisors, if measured. Fails if a count
    /// exceeds its limit.
    pub fn print(&self, nodes: i32) -> Result<()> {
        let anew = self.arm(RECREATED);
        println!("\n{HEAD}");
        for arm in &self.arms {
            println!("{}", arm.row(anew.map(Arm::median)));
        }
        let (Some(supervised), Some(anew)) = (self.arm(SUPERVISED), anew) else {
            return Ok(());
        };
        let nodes = usize::try_from(nodes)?;
        let budgets = budgets::lines(nodes, supervised, anew, self.most_resident);
        println!();
        for line in &budgets {
            println!("{}", line.show());
        }
        ensure!(
            !budgets.iter().any(budgets::Line::fails),
            "a budget that is counted was missed"
        );
        Ok(())
    }
}

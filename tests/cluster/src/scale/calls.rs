//! Writes by whom, from the audit log.

use std::collections::BTreeMap;

use anyhow::Result;
use lockstep_cluster::audit::{AGENT, Follow, MANAGER, Write};

/// Agents that are named of those that wrote more than once.
const NAMED: usize = 10;

/// Of API Priority and Fairness; no budget guards the members.
const TOO_MANY_REQUESTS: u16 = 429;

/// Writes of an arm, by who made them and of what.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    counts: BTreeMap<(&'static str, String), usize>,
    /// Those that an overloaded API server refused, and whose writer was to try again.
    refused: BTreeMap<(&'static str, String), usize>,
    /// The answers to each agent's writes, by its node. One is the arrival.
    by_agent: BTreeMap<String, Vec<u16>>,
}

/// Who makes writes that count: everybody but the controllers of the control plane, which are in no
/// log, and the benchmark itself.
fn who(write: &Write) -> Option<&'static str> {
    match write.user.as_str() {
        MANAGER => Some("manager"),
        AGENT => Some("agents"),
        "hollow" => Some("kubelets"),
        _ => None,
    }
}

/// Whether it is made for something that happens: Leases are renewed whatever happens, and a dry run
/// changes nothing.
pub fn has_cause(write: &Write) -> bool {
    write.resource != "leases" && !write.dry_run
}

/// Events are told best effort.
fn counts(write: &Write) -> bool {
    has_cause(write) && write.resource != "events"
}

impl Calls {
    /// Those that were added to the log since it was last asked.
    pub fn since(log: &mut Follow) -> Result<Self> {
        let mut calls = Self::default();
        for write in log.added()? {
            if let Some(who) = who(&write).filter(|_| counts(&write)) {
                let what = format!("{} {}", write.verb, write.target());
                if write.code == TOO_MANY_REQUESTS {
                    *calls.refused.entry((who, what)).or_default() += 1;
                    continue;
                }
                *calls.counts.entry((who, what)).or_default() += 1;
                if who == "agents" {
                    calls
                        .by_agent
                        .entry(write.name)
                        .or_default()
                        .push(write.code);
                }
            }
        }
        Ok(calls)
    }

    /// So many of each.
    #[cfg(test)]
    pub fn of_these(calls: &[(&'static str, &str, usize)]) -> Self {
        let of = |&(who, what, n): &(&'static str, &str, usize)| ((who, what.to_owned()), n);
        Self {
            counts: calls.iter().map(of).collect(),
            ..Self::default()
        }
    }

    /// Those that one identity made.
    pub fn by(&self, who: &str) -> usize {
        let mut all = self.counts.iter();
        all.by_ref()
            .filter(|((by, _), _)| *by == who)
            .map(|(_, n)| n)
            .sum()
    }

    /// Writes of one verb and target.
    pub fn of(&self, who: &str, what: &str) -> usize {
        let mut all = self.counts.iter();
        all.find(|((by, of), _)| *by == who && of == what)
            .map_or(0, |(_, n)| *n)
    }

    /// One line for each identity, and one for what was refused of it.
    pub fn lines(&self) -> Vec<String> {
        let counts = lines("", &self.counts);
        let refused = lines(" refused", &self.refused);
        let all = counts.into_iter().chain(refused);
        all.chain(self.repeated()).collect()
    }

    /// The agents that wrote more than once, where they are few.
    fn repeated(&self) -> Option<String> {
        let repeated = self.by_agent.iter().filter(|(_, codes)| codes.len() > 1);
        let names: Vec<String> = repeated
            .map(|(node, codes)| format!("{node} {codes:?}"))
            .collect();
        (1..=NAMED)
            .contains(&names.len())
            .then(|| format!("more than once: {}", names.join(", ")))
    }
}

fn lines(outcome: &str, counts: &BTreeMap<(&'static str, String), usize>) -> Vec<String> {
    let mut by: BTreeMap<&str, (usize, Vec<String>)> = BTreeMap::new();
    for ((who, what), n) in counts {
        let (sum, all) = by.entry(who).or_default();
        *sum += n;
        all.push(format!("{n} {what}"));
    }
    by.into_iter()
        .map(|(who, (sum, all))| format!("{who}{outcome} {sum}: {}", all.join(", ")))
        .collect()
}

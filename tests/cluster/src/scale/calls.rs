//! Writes by identity, from the audit log.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use lockstep_cluster::audit::{AGENT, Follow, MANAGER, Write};

/// Limit of the agents that are named because they wrote more than once.
const NAMED: usize = 10;

/// Refusal by API Priority and Fairness, which sets no limit for members.
const TOO_MANY_REQUESTS: u16 = 429;

/// Writes of an arm, by identity and target.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    counts: BTreeMap<(&'static str, String), usize>,
    /// Writes that an overloaded API server refused, to be retried.
    refused: BTreeMap<(&'static str, String), usize>,
    /// Status codes of each agent's writes, by node. One write is the agent's registration.
    by_agent: BTreeMap<String, Vec<u16>>,
    /// Nodes that the node lifecycle controller has marked NotReady.
    pub not_ready: BTreeSet<String>,
}

/// The node lifecycle controller writes the status of a node only to mark it NotReady.
const NODE_CONTROLLER: &str = "system:serviceaccount:kube-system:node-controller";
const NODE_STATUS: &str = "nodes/status";

/// Identity whose writes count: all but the controllers of the control plane, which are in no log,
/// and the benchmark itself.
fn who(write: &Write) -> Option<&'static str> {
    match write.user.as_str() {
        MANAGER => Some("manager"),
        AGENT => Some("agents"),
        "hollow" => Some("kubelets"),
        _ => None,
    }
}

/// False for renewals of Leases, which do not depend on events, and for dry runs.
pub fn has_cause(write: &Write) -> bool {
    write.resource != "leases" && !write.dry_run
}

/// False for Events, which are best effort.
fn counts(write: &Write) -> bool {
    has_cause(write) && write.resource != "events"
}

impl Calls {
    /// Writes that were added to the log since the last call.
    pub fn since(log: &mut Follow) -> Result<Self> {
        let mut calls = Self::default();
        for write in log.added()? {
            if write.user == NODE_CONTROLLER && write.target() == NODE_STATUS {
                calls.not_ready.insert(write.name);
                continue;
            }
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

    /// Writes with these numbers.
    #[cfg(test)]
    pub fn of_these(calls: &[(&'static str, &str, usize)]) -> Self {
        let of = |&(who, what, n): &(&'static str, &str, usize)| ((who, what.to_owned()), n);
        Self {
            counts: calls.iter().map(of).collect(),
            ..Self::default()
        }
    }

    /// Number of writes of an identity.
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

    /// A line per identity, and a line for its refused writes.
    pub fn lines(&self) -> Vec<String> {
        let counts = lines("", &self.counts);
        let refused = lines(" refused", &self.refused);
        let all = counts.into_iter().chain(refused);
        all.chain(self.repeated()).chain(self.silenced()).collect()
    }

    fn silenced(&self) -> Option<String> {
        let names: Vec<&str> = self.not_ready.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| format!("NotReady {}: {}", names.len(), names.join(", ")))
    }

    /// The agents that wrote more than once, if they are few.
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

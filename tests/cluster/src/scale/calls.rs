//! Writes by whom, from the audit log.

use std::collections::BTreeMap;

use anyhow::Result;
use lockstep_cluster::audit::{AGENT, Follow, MANAGER, Write};

/// Writes of an arm, by who made them and of what.
#[derive(Clone, Debug, Default)]
pub struct Calls(BTreeMap<(&'static str, String), usize>);

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

/// Events are told best effort, and Leases are renewed whatever happens.
fn counts(write: &Write) -> bool {
    !matches!(write.resource.as_str(), "events" | "leases") && !write.dry_run
}

impl Calls {
    /// Those that were added to the log since it was last asked.
    pub fn since(log: &mut Follow) -> Result<Self> {
        let mut calls = Self::default();
        for write in log.added()? {
            if let Some(who) = who(&write).filter(|_| counts(&write)) {
                let what = format!("{} {}", write.verb, write.target());
                *calls.0.entry((who, what)).or_default() += 1;
            }
        }
        Ok(calls)
    }

    /// Those that one identity made.
    pub fn by(&self, who: &str) -> usize {
        let mut all = self.0.iter();
        all.by_ref()
            .filter(|((by, _), _)| *by == who)
            .map(|(_, n)| n)
            .sum()
    }

    /// Writes of one verb and target.
    pub fn of(&self, who: &str, what: &str) -> usize {
        let mut all = self.0.iter();
        all.find(|((by, of), _)| *by == who && of == what)
            .map_or(0, |(_, n)| *n)
    }

    /// One line for each identity.
    pub fn lines(&self) -> Vec<String> {
        let mut by: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ((who, what), n) in &self.0 {
            by.entry(who).or_default().push(format!("{n} {what}"));
        }
        by.into_iter()
            .map(|(who, all)| format!("{who} {}: {}", self.by(who), all.join(", ")))
            .collect()
    }
}

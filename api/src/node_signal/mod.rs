//! Signals about nodes: what clouds, autoscalers and health agents announce on the node's object.

mod built_in;
mod rule;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use self::built_in::BUILT_IN;
pub use self::rule::{
    AllocatableMatch, ConditionMatch, DeadlineField, FoundSignal, KeyMatch, LimitedResource,
    NodeCondition, NodeFields, SignalMatch, SignalRule, TaintMatch,
};
use crate::Outlook;

crate::worded! {
    /// What a signal means, in ascending order of severity.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum SignalLevel {
        /// A fault is likely. The node is the last choice.
        Suspect = "Suspect",
        /// The node will be removed or stopped. Gangs move before its deadline.
        Leaving = "Leaving",
        /// A fault is certain. No pods are placed on the node, and gangs move at once.
        Faulty = "Faulty",
    }
}

/// What the manager does about signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeHealthMode {
    /// Signals are not read.
    Off,
    /// Signals are shown, with what `Act` would do.
    #[default]
    Observe,
    /// Signals count for placement, and gangs move.
    Act,
}

/// A signal that a node has now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSignal {
    /// Name of the signal in the configuration.
    pub name: String,
    /// Its level.
    pub level: SignalLevel,
    /// Announced end of the node, if the signal has one.
    pub deadline: Option<DateTime<Utc>>,
    /// Since when the node has the signal, by the manager's clock.
    pub since: DateTime<Utc>,
    /// End of its hold time. Before it, the signal is shown and has no effect.
    pub counts_from: DateTime<Utc>,
}

impl NodeSignal {
    /// True if the signal has an effect: its hold time is over, and its deadline is not.
    pub fn counts(&self, now: DateTime<Utc>) -> bool {
        self.counts_from <= now && self.deadline.is_none_or(|at| at > now)
    }
}

/// The most severe signal that counts, with the earliest deadline of a node that leaves.
pub fn outlook(signals: &[NodeSignal], now: DateTime<Utc>) -> Outlook {
    let counting = || signals.iter().filter(|signal| signal.counts(now));
    match counting().map(|signal| signal.level).max() {
        None => Outlook::Healthy,
        Some(SignalLevel::Suspect) => Outlook::Suspect,
        Some(SignalLevel::Leaving) => {
            let leaving = counting().filter(|signal| signal.level == SignalLevel::Leaving);
            let deadline = leaving.filter_map(|signal| signal.deadline).min();
            Outlook::Leaving { deadline }
        }
        Some(SignalLevel::Faulty) => Outlook::Faulty,
    }
}

/// When the effect of these signals changes next: the end of a hold time, or a deadline.
pub fn next_change(signals: &[NodeSignal], now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let times = signals
        .iter()
        .flat_map(|signal| [Some(signal.counts_from), signal.deadline]);
    times.flatten().filter(|at| *at > now).min()
}

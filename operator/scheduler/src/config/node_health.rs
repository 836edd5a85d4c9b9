//! Configuration of signals of nodes.

use std::borrow::Cow;
use std::time::Duration;

use kube::core::Duration as Span;
use lockstep_api::node_signal::{BUILT_IN, DeadlineField, SignalMatch, SignalRule};
use lockstep_api::{NodeHealthMode, SignalLevel};
use serde::{Deserialize, Serialize};

use super::{ValueRule, time};
use crate::settings::SchedulerSettings;

/// Upper bound of `leadTime`.
const MAX_LEAD_TIME: Duration = Duration::from_hours(24);
/// Upper bound of `moveHorizon`.
const MAX_HORIZON: Duration = Duration::from_hours(30 * 24);
/// Upper bound of `concurrentMoves`.
const MAX_MOVES: usize = 1000;
/// Upper bound of `holdSeconds`.
const MAX_HOLD: u32 = 24 * 3600;

/// What clouds, autoscalers and health agents announce on nodes, and moves of gangs away from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeHealthConfig {
    /// What the manager does about signals.
    pub mode: NodeHealthMode,
    /// How long before the announced end of a node its gangs move, at least; 0s to 24h.
    pub lead_time: Span,
    /// A move, or another restart in place, leaves all nodes that end within this time, and no gang is
    /// placed there if it fits elsewhere; 0s to 720h. At least `leadTime`.
    pub move_horizon: Span,
    /// Most gangs that move at once, 1 to 1000. The limit delays no move past its last safe moment.
    pub concurrent_moves: usize,
    /// Signals in addition to the [built-in signals](node-signals.md), and changes of these by name:
    /// `name`, `enabled`, `match`, `level`, `holdSeconds`, `deadline`
    /// ([how](../how-to/node-signals.md#add-a-signal)).
    pub signals: Vec<SignalConfig>,
}

/// A signal. A built-in signal of the same name has the values of absent fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignalConfig {
    /// Its name.
    pub name: String,
    /// `false`: the signal is ignored.
    #[serde(default = "enabled")]
    pub enabled: bool,
    /// The field of the node that has the signal.
    #[serde(rename = "match", default, skip_serializing_if = "Option::is_none")]
    pub matches: Option<SignalMatch>,
    /// Its level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<SignalLevel>,
    /// How long a node must have the signal before it has an effect, 0 to 86400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<u32>,
    /// The field that has the announced end of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DeadlineField>,
}

fn enabled() -> bool {
    true
}

impl Default for NodeHealthConfig {
    fn default() -> Self {
        let settings = SchedulerSettings::default();
        Self {
            mode: NodeHealthMode::default(),
            lead_time: Duration::from_mins(10).into(),
            move_horizon: settings.move_horizon.into(),
            concurrent_moves: settings.concurrent_moves,
            signals: Vec::new(),
        }
    }
}

impl NodeHealthConfig {
    /// Rules for all values.
    pub fn rules(&self) -> impl Iterator<Item = ValueRule> {
        let (lead, horizon) = (self.lead_time, self.move_horizon);
        let values = [
            ValueRule::new(
                !lead.is_negative() && time(lead) <= MAX_LEAD_TIME,
                "nodeHealth.leadTime",
                lead,
                "0s to 24h",
            ),
            ValueRule::new(
                !horizon.is_negative() && time(horizon) <= MAX_HORIZON,
                "nodeHealth.moveHorizon",
                horizon,
                "0s to 720h (30 days)",
            ),
            ValueRule::new(
                time(lead) <= time(horizon),
                "nodeHealth.leadTime",
                lead,
                "at most nodeHealth.moveHorizon",
            ),
            ValueRule::new(
                (1..=MAX_MOVES).contains(&self.concurrent_moves),
                "nodeHealth.concurrentMoves",
                self.concurrent_moves,
                "1 to 1000",
            ),
        ];
        let signals = self.signals.iter().enumerate();
        let signals = signals.flat_map(|(at, signal)| signal.rules(&self.signals[..at]));
        values.into_iter().chain(signals)
    }

    /// The enabled signals: the built-in ones with their changes, then all others.
    pub fn signal_rules(&self) -> Vec<SignalRule> {
        let configured = |name: &str| self.signals.iter().find(|signal| signal.name == name);
        let built_in = BUILT_IN
            .iter()
            .filter_map(|rule| match configured(&rule.name) {
                Some(signal) => signal.over(Some(rule)),
                None => Some(rule.clone()),
            });
        let others = self
            .signals
            .iter()
            .filter(|signal| signal.built_in().is_none());
        built_in
            .chain(others.filter_map(|signal| signal.over(None)))
            .collect()
    }
}

impl SignalConfig {
    fn built_in(&self) -> Option<&'static SignalRule> {
        BUILT_IN.iter().find(|rule| rule.name == self.name)
    }

    /// `None` if the signal is disabled.
    fn over(&self, rule: Option<&SignalRule>) -> Option<SignalRule> {
        let matches = self.matches.clone().or_else(|| Some(rule?.matches.clone()));
        self.enabled.then_some(SignalRule {
            name: Cow::Owned(self.name.clone()),
            matches: matches?,
            level: self.level.or_else(|| Some(rule?.level))?,
            hold_seconds: self
                .hold_seconds
                .or_else(|| Some(rule?.hold_seconds))
                .unwrap_or(0),
            deadline: self.deadline.clone().or_else(|| rule?.deadline.clone()),
        })
    }

    fn rules(&self, before: &[Self]) -> [ValueRule; 5] {
        let (name, key) = (self.name.as_str(), "nodeHealth.signals");
        let is_whole = self.matches.is_some() && self.level.is_some();
        let status = match &self.matches {
            Some(SignalMatch::Condition(condition)) => &*condition.status,
            _ => "True",
        };
        [
            ValueRule::new(!name.is_empty(), key, name, "signals with a name"),
            ValueRule::new(
                before.iter().all(|other| other.name != name),
                key,
                name,
                "signals of different names",
            ),
            ValueRule::new(
                is_whole || !self.enabled || self.built_in().is_some(),
                key,
                name,
                "the name of a built-in signal, or a signal with match and level",
            ),
            ValueRule::new(
                ["True", "False"].contains(&status),
                key,
                format!("{name}: {status}"),
                "conditions with status \"True\" or \"False\"",
            ),
            ValueRule::new(
                self.hold_seconds.is_none_or(|seconds| seconds <= MAX_HOLD),
                key,
                name,
                "signals with holdSeconds of 0 to 86400",
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use lockstep_api::node_signal::TaintMatch;

    use super::*;

    fn signal(name: &str) -> SignalConfig {
        SignalConfig {
            name: name.into(),
            enabled: true,
            matches: None,
            level: None,
            hold_seconds: None,
            deadline: None,
        }
    }

    fn of(signals: Vec<SignalConfig>) -> NodeHealthConfig {
        NodeHealthConfig {
            signals,
            ..NodeHealthConfig::default()
        }
    }

    #[test]
    fn a_built_in_signal_is_disabled_or_changed_by_its_name() {
        let rule = |config: &NodeHealthConfig, name: &str| {
            let mut rules = config.signal_rules().into_iter();
            rules.find(|rule| rule.name == name)
        };
        let config = of(vec![
            SignalConfig {
                enabled: false,
                ..signal("KernelDeadlock")
            },
            SignalConfig {
                level: Some(SignalLevel::Suspect),
                ..signal("KarpenterDisrupted")
            },
        ]);
        assert!(config.rules().all(|rule| rule.holds));
        assert_eq!(rule(&config, "KernelDeadlock"), None);
        let changed = rule(&config, "KarpenterDisrupted").unwrap();
        let original = rule(&NodeHealthConfig::default(), "KarpenterDisrupted").unwrap();
        assert_eq!(changed.level, SignalLevel::Suspect);
        assert_eq!(changed.matches, original.matches);
    }

    #[test]
    fn a_new_signal_needs_a_match_and_a_level() {
        let refused = |signals: Vec<SignalConfig>| {
            let config = of(signals);
            config
                .rules()
                .find(|rule| !rule.holds)
                .map(|r| r.to_string())
        };
        let whole = SignalConfig {
            matches: Some(SignalMatch::Taint(TaintMatch {
                key: "example.com/drain".into(),
                value: None,
                effect: None,
            })),
            level: Some(SignalLevel::Leaving),
            ..signal("Drain")
        };
        assert_eq!(refused(vec![whole.clone()]), None);
        assert_eq!(
            of(vec![whole.clone()]).signal_rules().len(),
            BUILT_IN.len() + 1
        );
        let said = refused(vec![signal("Drain")]).unwrap();
        let expected =
            "nodeHealth.signals: Invalid value: \"Drain\": must be the name of a built-in";
        assert!(said.starts_with(expected), "{said}");
        let said = refused(vec![whole.clone(), whole]).unwrap();
        assert!(
            said.ends_with("must be signals of different names"),
            "{said}"
        );
    }
}

//! Rules that find signals in the fields of a node.

use std::borrow::Cow;
use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Serialize};

use super::{NodeSignal, SignalLevel};

type Text = Cow<'static, str>;

/// A rule that finds one signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalRule {
    /// Name of the signal.
    pub name: Text,
    /// The field of the node that has the signal.
    pub matches: SignalMatch,
    /// Level of the signal.
    pub level: SignalLevel,
    /// How long a node must have the signal before it has an effect.
    pub hold_seconds: u32,
    /// The field that has the announced end of the node.
    pub deadline: Option<DeadlineField>,
}

/// The field of a node that has a signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SignalMatch {
    /// A condition with this status.
    Condition(ConditionMatch),
    /// A taint.
    Taint(TaintMatch),
    /// A label.
    Label(KeyMatch),
    /// An annotation.
    Annotation(KeyMatch),
    /// The node offers less of an extended resource than its pods request, and more than 0.
    Allocatable(AllocatableMatch),
}

/// Matches a condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConditionMatch {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: Text,
    /// Status that means the signal: `True` or `False`.
    pub status: Text,
    /// Reasons that mean the signal; a `*` at the end stands for any text. Empty: any reason.
    #[serde(default, skip_serializing_if = "<[Text]>::is_empty")]
    pub reasons: Cow<'static, [Text]>,
}

/// Matches a taint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaintMatch {
    /// Key of the taint.
    pub key: Text,
    /// Its value. Absent: any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Text>,
    /// Its effect. Absent: any effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Text>,
}

/// Matches a label or an annotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyMatch {
    /// Its key.
    pub key: Text,
    /// Values that mean the signal. Empty: any value.
    #[serde(default, skip_serializing_if = "<[Text]>::is_empty")]
    pub values: Cow<'static, [Text]>,
}

/// Matches a resource of which the node offers less than its pods request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllocatableMatch {
    /// Name of an extended resource; a `*` at the end stands for any text.
    pub resource: Text,
}

/// The field with the announced end of a node, as RFC 3339 or in Unix seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DeadlineField {
    /// The label with this key.
    Label(Text),
    /// The annotation with this key.
    Annotation(Text),
    /// The value of the taint with this key.
    TaintValue(Text),
    /// The reason of the condition of this type.
    ConditionReason(Text),
}

/// The fields of a node that rules read.
#[derive(Clone, Debug)]
pub struct NodeFields<'n> {
    /// Its labels.
    pub labels: &'n BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: &'n BTreeMap<String, String>,
    /// Its taints.
    pub taints: &'n [Taint],
    /// Its conditions.
    pub conditions: Vec<NodeCondition<'n>>,
    /// Extended resources of which it offers more than 0 and less than its capacity.
    pub limited: Vec<LimitedResource>,
}

/// A condition of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeCondition<'n> {
    /// Its type.
    pub type_: &'n str,
    /// Its status.
    pub status: &'n str,
    /// Its reason.
    pub reason: &'n str,
    /// Time of its last transition, by the node's clock.
    pub since: Option<DateTime<Utc>>,
}

/// An extended resource of which a node offers less than its capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedResource {
    /// Name of the resource.
    pub name: String,
    /// What the node offers.
    pub allocatable: i64,
}

/// A signal in the fields of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSignal {
    name: Text,
    level: SignalLevel,
    hold: TimeDelta,
    deadline: Option<DateTime<Utc>>,
    /// Time of the last transition of its condition, by the node's clock.
    transition: Option<DateTime<Utc>>,
    /// The node has the signal only while its pods request more of these resources.
    pub limited: Vec<LimitedResource>,
}

impl SignalRule {
    /// Finds the signal of the rule.
    pub fn find(&self, node: &NodeFields<'_>) -> Option<FoundSignal> {
        let (mut transition, mut limited) = (None, Vec::new());
        let has_signal = match &self.matches {
            SignalMatch::Condition(expected) => {
                let mut conditions = node.conditions.iter();
                let condition = conditions.find(|condition| expected.matches(condition));
                transition = condition.and_then(|condition| condition.since);
                condition.is_some()
            }
            SignalMatch::Taint(expected) => node.taints.iter().any(|taint| expected.matches(taint)),
            SignalMatch::Label(expected) => expected.matches(node.labels),
            SignalMatch::Annotation(expected) => expected.matches(node.annotations),
            SignalMatch::Allocatable(expected) => {
                let resources = node
                    .limited
                    .iter()
                    .filter(|r| fits(&expected.resource, &r.name));
                limited.extend(resources.cloned());
                !limited.is_empty()
            }
        };
        has_signal.then(|| FoundSignal {
            name: self.name.clone(),
            level: self.level,
            hold: TimeDelta::seconds(self.hold_seconds.into()),
            deadline: self.deadline.as_ref().and_then(|field| field.read(node)),
            transition,
            limited,
        })
    }
}

impl ConditionMatch {
    /// `Unknown` never means a signal.
    fn matches(&self, condition: &NodeCondition<'_>) -> bool {
        self.type_ == condition.type_
            && self.status == condition.status
            && condition.status != "Unknown"
            && (self.reasons.is_empty() || self.reasons.iter().any(|r| fits(r, condition.reason)))
    }
}

impl TaintMatch {
    fn matches(&self, taint: &Taint) -> bool {
        let value = taint.value.as_deref().unwrap_or_default();
        self.key == taint.key
            && self
                .value
                .as_deref()
                .is_none_or(|expected| expected == value)
            && self
                .effect
                .as_deref()
                .is_none_or(|expected| expected == taint.effect)
    }
}

impl KeyMatch {
    fn matches(&self, entries: &BTreeMap<String, String>) -> bool {
        let value = entries.get(&*self.key);
        value.is_some_and(|value| self.values.is_empty() || self.values.iter().any(|v| v == value))
    }
}

impl DeadlineField {
    /// `None` if it is absent or unreadable.
    fn read(&self, node: &NodeFields<'_>) -> Option<DateTime<Utc>> {
        let text = match self {
            Self::Label(key) => node.labels.get(&**key)?,
            Self::Annotation(key) => node.annotations.get(&**key)?,
            Self::TaintValue(key) => {
                let mut taints = node.taints.iter();
                taints.find(|taint| taint.key == **key)?.value.as_deref()?
            }
            Self::ConditionReason(type_) => {
                let mut conditions = node.conditions.iter();
                conditions
                    .find(|condition| condition.type_ == &**type_)?
                    .reason
            }
        };
        if let Ok(seconds) = text.parse() {
            return DateTime::from_timestamp(seconds, 0);
        }
        let time = DateTime::parse_from_rfc3339(text).ok()?;
        Some(time.to_utc())
    }
}

impl FoundSignal {
    /// Name of the signal.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Time of the last transition of its condition, by the node's clock.
    pub fn transition(&self) -> Option<DateTime<Utc>> {
        self.transition
    }

    /// The signal, from its first receipt on. `None` if its deadline has passed. `first`: the node
    /// has just become known, so it may have had the signal since the transition of its condition, or
    /// for long if the signal has no time.
    pub fn received(
        &self,
        before: Option<&NodeSignal>,
        first: bool,
        now: DateTime<Utc>,
    ) -> Option<NodeSignal> {
        if self.deadline.is_some_and(|at| at <= now) {
            return None;
        }
        let since = match (before, self.transition) {
            (Some(before), _) => before.since,
            (None, Some(at)) if first => at.min(now),
            // Its age is unknown. Only devices can be away because their plugin restarts.
            (None, None) if first && self.limited.is_empty() => now - self.hold,
            _ => now,
        };
        Some(NodeSignal {
            name: self.name.clone().into_owned(),
            level: self.level,
            deadline: self.deadline,
            since,
            counts_from: since + self.hold,
        })
    }
}

/// True if the text is the pattern, or starts with it up to the `*` at its end.
fn fits(pattern: &str, text: &str) -> bool {
    let prefix = pattern.strip_suffix('*');
    prefix.map_or(pattern == text, |prefix| text.starts_with(prefix))
}

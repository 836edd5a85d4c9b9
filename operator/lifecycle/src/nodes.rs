//! Nodes and their agents as decisions read them.

use chrono::{DateTime, Utc};
use lockstep_api::names::RESTART_ALL_FEATURE;
use lockstep_api::node_agent::{Arrival, MemberProgress};
use lockstep_api::tier::Tier;
use lockstep_api::{NodeAgentStatus, NodeSignal, NodeState};

/// A node on which members run or are placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Start of the time in which the node is not Ready. `None` while it is Ready.
    pub not_ready_since: Option<DateTime<Utc>>,
    /// When the condition Ready became True, by the node's clock. Only distinguishes transitions.
    pub became_ready: Option<DateTime<Utc>>,
    /// The same by the manager's clock. `None` if the condition has no time.
    pub ready_since: Option<DateTime<Utc>>,
    /// With the outages of its zone.
    pub state: NodeState,
    /// Signals that it has, sorted by name. Empty in mode Off.
    pub signals: Vec<NodeSignal>,
    /// `spec.providerID`, which identifies the machine. Empty without one.
    pub machine: String,
    /// `status.nodeInfo.bootID`.
    pub boot: String,
    /// Region and zone from its labels. Empty without them.
    pub zone: String,
    /// `status.declaredFeatures` (KEP-5328).
    pub declared_features: Vec<String>,
    /// `status.nodeInfo.kubeletVersion`, such as `v1.37.2`.
    pub kubelet_version: String,
    /// `status.nodeInfo.containerRuntimeVersion`, such as `containerd://2.4.2`.
    pub runtime_version: String,
}

impl NodeInfo {
    /// Sets `ready_since`: now for a transition; for a new node, the node's own time up to now.
    #[must_use]
    pub fn received(mut self, before: Option<&Self>, now: DateTime<Utc>) -> Self {
        self.ready_since = self.became_ready.map(|at| match before {
            None => at.min(now),
            Some(old) if old.became_ready == Some(at) => old.ready_since.unwrap_or(now),
            Some(_) => now,
        });
        self
    }

    /// True if the node mounts images as volumes (KEP-4639). The feature is always on from
    /// Kubernetes 1.36. containerd supports it from 2.1, CRI-O from 1.31.
    pub fn mounts_images(&self) -> bool {
        let runtime = self
            .runtime_version
            .split_once("://")
            .and_then(|(name, version)| {
                let oldest = match name {
                    "containerd" => (2, 1),
                    "cri-o" => (1, 31),
                    _ => return None,
                };
                Some(version_of(version)? >= oldest)
            });
        runtime == Some(true) && version_of(&self.kubelet_version).is_some_and(|v| v >= (1, 36))
    }

    /// The tier of pods on the node. `server`: the highest tier whose rules the API server keeps.
    ///
    /// Rules require kubelet 1.35, where they are on by default. Older kubelets ignore them without
    /// a message.
    pub fn tier(&self, server: Tier) -> Tier {
        let mut features = self.declared_features.iter();
        let able = features.any(|f| f == RESTART_ALL_FEATURE);
        let has_rules = able || version_of(&self.kubelet_version).is_some_and(|v| v >= (1, 35));
        match server {
            Tier::RestartAll if able => Tier::RestartAll,
            Tier::Supervised | Tier::RestartAll | Tier::RestartRules if has_rules => {
                Tier::RestartRules
            }
            // The node ignores the rules, or the API server drops them.
            Tier::Supervised | Tier::RestartAll | Tier::RestartRules | Tier::Plain => Tier::Plain,
        }
    }
}

/// Major and minor version of a string such as `v1.37.2` or `1.33.5-gke.1`.
pub(crate) fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim_start_matches('v').split('.');
    let major = parts.next()?.parse().ok()?;
    let digits = parts.next()?.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major, digits.parse().ok()?))
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentInfo {
    /// Whether the agent's own pod is ready.
    pub ready: bool,
    /// Its published status. It counts only for pods bound to its node, and progress times are
    /// limited to the receipt.
    pub status: NodeAgentStatus,
    /// Receipt of each arrival, by the manager's clock.
    pub received_at: Vec<DateTime<Utc>>,
}

impl AgentInfo {
    /// Earlier arrivals keep their time of receipt.
    pub fn received(
        ready: bool,
        mut status: NodeAgentStatus,
        before: Option<&Self>,
        now: DateTime<Utc>,
    ) -> Self {
        for new in &mut status.progress {
            let mut reported = before.iter().flat_map(|b| &b.status.progress);
            let old = reported.find(|p| (&p.pod_uid, p.attempt) == (&new.pod_uid, new.attempt));
            by_our_clock(new, old, now);
        }
        let earlier = |new| before.and_then(|b| b.received_before(new));
        let received_at = status
            .arrivals
            .iter()
            .map(|new| earlier(new).unwrap_or(now))
            .collect();
        // Deserialized vectors can have twice the needed capacity, and there are thousands of
        // agents.
        status.reports.shrink_to_fit();
        status.arrivals.shrink_to_fit();
        Self {
            ready,
            status,
            received_at,
        }
    }

    fn received_before(&self, new: &Arrival) -> Option<DateTime<Utc>> {
        let mut arrivals = self.status.arrivals.iter().zip(&self.received_at);
        arrivals.find_map(|(old, at)| (old.pods == new.pods && is_same(old, new)).then_some(*at))
    }
}

/// Limits times to the first receipt, because the node's clock can be ahead.
fn by_our_clock(new: &mut MemberProgress, old: Option<&MemberProgress>, now: DateTime<Utc>) {
    let same_step = old.filter(|old| old.step == new.step);
    let same_checkpoint = old.filter(|old| old.checkpoint_step == new.checkpoint_step);
    let first = same_step.map_or(now, |old| old.step_time);
    new.step_time = new.step_time.min(first);
    let first = same_checkpoint.and_then(|old| old.checkpoint_time);
    new.checkpoint_time = new.checkpoint_time.map(|at| at.min(first.unwrap_or(now)));
}

fn is_same(a: &Arrival, b: &Arrival) -> bool {
    (&a.workload_uid, &a.domain, a.attempt) == (&b.workload_uid, &b.domain, b.attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tier_follows_what_node_and_api_server_can_do() {
        let node = |version: &str, features: &[&str]| NodeInfo {
            kubelet_version: version.into(),
            declared_features: features.iter().map(|f| (*f).to_owned()).collect(),
            ..NodeInfo::default()
        };
        assert_eq!(
            node("v1.37.2", &[RESTART_ALL_FEATURE]).tier(Tier::RestartAll),
            Tier::RestartAll
        );
        assert_eq!(
            node("v1.37.2", &[RESTART_ALL_FEATURE]).tier(Tier::Plain),
            Tier::Plain,
            "the API server drops the rules of every kind"
        );
        assert_eq!(
            node("v1.37.2", &[RESTART_ALL_FEATURE]).tier(Tier::RestartRules),
            Tier::RestartRules,
            "its gate for restarts of all containers is off"
        );
        assert_eq!(
            node("v1.37.2", &["Other"]).tier(Tier::RestartAll),
            Tier::RestartRules
        );
        assert_eq!(
            node("v1.35.0-rc.1", &[]).tier(Tier::RestartAll),
            Tier::RestartRules
        );
        assert_eq!(
            node("v1.37.2", &[]).tier(Tier::Plain),
            Tier::Plain,
            "the API server drops the rules"
        );
        assert_eq!(
            node("v1.34.9", &[]).tier(Tier::RestartAll),
            Tier::Plain,
            "that kubelet ignores them"
        );
        assert_eq!(node("weird", &[]).tier(Tier::RestartAll), Tier::Plain);
    }

    #[test]
    fn a_node_mounts_images_if_its_kubelet_and_its_runtime_do() {
        for (kubelet, runtime, expected) in [
            ("v1.37.2", "containerd://2.4.2", true),
            ("v1.36.0-gke.1", "containerd://2.1.0-rc.1", true),
            ("v1.36.1", "cri-o://1.36.0", true),
            ("v1.35.4", "containerd://2.4.2", false),
            ("v1.37.2", "containerd://2.0.9", false),
            ("v1.37.2", "containerd://1.7.28", false),
            ("v1.37.2", "docker://29.0.1", false),
            ("v1.37.2", "", false),
        ] {
            let node = NodeInfo {
                kubelet_version: kubelet.into(),
                runtime_version: runtime.into(),
                ..NodeInfo::default()
            };
            assert_eq!(node.mounts_images(), expected, "{kubelet} {runtime}");
        }
    }
}

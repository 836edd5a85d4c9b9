//! Preemption rules, signals of nodes and integrations of the manager's configuration.

use lockstep_api::provisioning::SIGNAL_NAMESPACE;
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_model::Rules;
use lockstep_scheduler::SchedulerSettings;
use lockstep_scheduler::config::{NodeHealthConfig, SchedulerConfig};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub struct PublishedRules {
    pub rules: Rules,
    pub evicts: bool,
}

/// The relevant parts of the configuration. Ignores unknown keys, because the manager can be newer
/// than this program.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct ManagerConfig {
    scheduler: SchedulerConfig,
    #[serde(rename = "nodeHealth")]
    node_health: NodeHealthConfig,
    pub scheduling: SchedulingPart,
    agents: AgentsPart,
    pub autoscaler: AutoscalerPart,
    pub kueue: KueuePart,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct SchedulingPart {
    /// The scheduling backend; empty for the default.
    pub backend: String,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct AgentsPart {
    namespace: String,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(default)]
pub struct AutoscalerPart {
    pub mode: AutoscalerMode,
    /// Namespace of signal pods.
    pub namespace: String,
}

impl Default for AutoscalerPart {
    fn default() -> Self {
        Self {
            mode: AutoscalerMode::Off,
            namespace: SIGNAL_NAMESPACE.into(),
        }
    }
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct KueuePart {
    /// Whether workloads with a queue wait for Kueue.
    pub enabled: bool,
}

impl ManagerConfig {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let first_line = |why: String| why.lines().next().unwrap_or_default().trim().to_owned();
        serde_saphyr::from_str(text).map_err(|why| first_line(why.to_string()))
    }
}

/// The signals of nodes in the configuration of a manager.
pub fn node_health(text: &str) -> Result<NodeHealthConfig, String> {
    Ok(ManagerConfig::parse(text)?.node_health)
}

/// The relevant parts of the configuration with their defaults. An error quotes nothing.
pub fn effective(text: &str) -> Option<Value> {
    serde_json::to_value(ManagerConfig::parse(text).ok()?).ok()
}

/// Parses the configuration of a manager in this namespace.
pub fn published(text: &str, namespace: &str) -> Result<PublishedRules, String> {
    let config = ManagerConfig::parse(text)?;
    let settings = SchedulerSettings::from(&config.scheduler);
    let mut rules = settings.rules;
    // As in the manager, Lockstep's own pods are never victims.
    let own = [namespace, &config.agents.namespace]
        .into_iter()
        .filter(|n| !n.is_empty());
    rules
        .victims
        .excluded_namespaces
        .extend(own.map(str::to_owned));
    Ok(PublishedRules {
        rules,
        evicts: settings.preemption_enabled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_engine::VictimOrder;

    const SHIPPED: &str = include_str!("../../../config/manager/config.yaml");

    #[test]
    fn the_shipped_configuration_is_the_defaults_without_the_own_namespaces() {
        let mut expected = Rules::default();
        let own = ["lockstep-system", "lockstep-agent"].map(str::to_owned);
        expected.victims.excluded_namespaces.extend(own);
        let expected = PublishedRules {
            rules: expected,
            evicts: true,
        };
        assert_eq!(published(SHIPPED, "lockstep-system"), Ok(expected));
    }

    #[test]
    fn the_integrations_are_read_from_the_configuration() {
        let read = |text: &str| {
            let config = ManagerConfig::parse(text).ok()?;
            let (backend, autoscaler) = (config.scheduling.backend, config.autoscaler);
            let mode = autoscaler.mode;
            Some((backend, mode, autoscaler.namespace, config.kueue.enabled))
        };
        let off = AutoscalerMode::Off;
        let none = (String::new(), off, "lockstep-autoscaler".to_owned(), false);
        assert_eq!(read(SHIPPED).as_ref(), Some(&none));
        assert_eq!(read(""), Some(none));
        let all = "scheduling: {backend: Both}\nautoscaler: {mode: Pods, namespace: s, maxPods: 9}\nkueue: {enabled: true}";
        let expected = (
            "Both".to_owned(),
            AutoscalerMode::Pods,
            "s".to_owned(),
            true,
        );
        assert_eq!(read(all), Some(expected));
        assert_eq!(read("scheduling: 3"), None);
    }

    #[test]
    fn what_is_configured_otherwise_counts_and_what_is_newer_is_no_obstacle() {
        let text = "news: {a: 1}\nscheduler: {preemption: {enabled: false, order: LeastWork, minRuntimeSeconds: 60}}";
        let found = published(text, "ops").unwrap();
        assert!(!found.evicts && found.rules.order == VictimOrder::LeastWork);
        assert_eq!(found.rules.min_runtime.as_secs(), 60);
        assert!(published("scheduler: 3", "ops").is_err());
    }
}

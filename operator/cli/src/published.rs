//! Preemption rules and signals of nodes of the manager's configuration.

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
struct ManagerConfig {
    scheduler: SchedulerConfig,
    #[serde(rename = "nodeHealth")]
    node_health: NodeHealthConfig,
    scheduling: SchedulingPart,
    agents: AgentsPart,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct SchedulingPart {
    backend: String,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct AgentsPart {
    namespace: String,
}

impl ManagerConfig {
    fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let first_line = |why: String| why.lines().next().unwrap_or_default().trim().to_owned();
        serde_saphyr::from_str(text).map_err(|why| first_line(why.to_string()))
    }
}

/// The scheduling backend in the configuration of a manager, empty for the default; `None` if it
/// cannot be parsed.
pub fn scheduling_backend(text: &str) -> Option<String> {
    Some(ManagerConfig::parse(text).ok()?.scheduling.backend)
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
    fn the_backend_is_read_from_the_configuration() {
        assert_eq!(scheduling_backend(SHIPPED).as_deref(), Some(""));
        let both = scheduling_backend("scheduling: {backend: Both}");
        assert_eq!(both.as_deref(), Some("Both"));
        assert_eq!(scheduling_backend("scheduling: 3"), None);
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

use serde::{Deserialize, Serialize};

/// Quota of teams by Kueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KueueConfig {
    /// Whether workloads with label `kueue.x-k8s.io/queue-name` are held until Kueue admits them.
    pub enabled: bool,
    /// Whether gangs that Kueue does not manage may preempt gangs that Kueue has admitted. Among gangs
    /// that Kueue manages, only Kueue preempts.
    pub evict_admitted: bool,
}

//! Reasons why a gang never fits: the nodes by the check that its pods fail.

use std::collections::BTreeMap;
use std::fmt;

use lockstep_api::condition::reasons;
use lockstep_api::scheduling::TopologyLevel;
use thiserror::Error;

/// Why the cluster could not hold a gang even without other work.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Misfit {
    /// No node has ever offered the resource.
    #[error(
        "no node offers {0} (resources of the containers in template.spec); devices of a DeviceClass (DRA) are not counted"
    )]
    Resource(String),
    /// No node holds a pod of one group.
    #[error("{0}")]
    Pod(Box<UnsuitableNodes>),
    /// The nodes together hold fewer pods than needed.
    #[error("the cluster is too small even without other work: {0}")]
    Cluster(String),
}

impl Misfit {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Resource(_) => reasons::EXCEEDS_LARGEST_NODE,
            Self::Cluster(_) => reasons::EXCEEDS_CLUSTER,
            Self::Pod(nodes) if !nodes.unlabelled.is_empty() => reasons::NO_TOPOLOGY_LABEL,
            Self::Pod(nodes) if nodes.too_small > 0 => reasons::EXCEEDS_LARGEST_NODE,
            Self::Pod(_) => reasons::NO_NODE_MATCHES,
        }
    }
}

/// All nodes, by the first check that a pod of one group fails.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnsuitableNodes {
    /// The group, if the gang has several.
    pub(crate) group: Option<String>,
    pub(crate) unmatched: usize,
    pub(crate) too_small: usize,
    /// What the smallest shortage of a node that is too small consists of.
    pub(crate) nearest_miss: String,
    /// Nodes without the label of a required level, by the outermost such level.
    pub(crate) unlabelled: BTreeMap<String, usize>,
    /// Field of the workload that names the levels.
    pub(crate) field: &'static str,
}

/// The field of the workload that names the keys of these levels.
pub(crate) fn key_field(levels: &[TopologyLevel]) -> &'static str {
    match levels {
        [] | [_] => "scheduling.topology.key",
        _ => "scheduling.topology.levels",
    }
}

impl fmt::Display for UnsuitableNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = &self.group {
            write!(f, "group {group}: ")?;
        }
        let unlabelled = self.unlabelled.values().sum::<usize>();
        let nodes = self.unmatched + self.too_small + unlabelled;
        write!(f, "0/{nodes} nodes are available")?;
        let mut causes = Vec::new();
        if self.unmatched > 0 {
            let text = "did not match nodeSelector, affinity, tolerations or volumes";
            causes.push(format!("{} {text}", self.unmatched));
        }
        if self.too_small > 0 {
            let miss = &self.nearest_miss;
            causes.push(format!("{} too small ({miss})", self.too_small));
        }
        for (key, count) in &self.unlabelled {
            causes.push(format!("{count} without label {key} ({})", self.field));
        }
        if causes.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", causes.join(", "))
    }
}

//! Reasons why a gang does not fit: the nodes by the check that its pods fail.

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
    /// The nodes that hold a pod are too few.
    #[error("too few nodes even without other work: {short}; {nodes}")]
    Nodes {
        short: String,
        nodes: Box<UnsuitableNodes>,
    },
}

impl Misfit {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Resource(_) => reasons::EXCEEDS_LARGEST_NODE,
            Self::Cluster(_) | Self::Nodes { .. } => reasons::EXCEEDS_CLUSTER,
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
    /// Nodes that hold a pod if nothing else runs there.
    pub(crate) suitable: usize,
    pub(crate) unmatched: usize,
    pub(crate) cordoned: usize,
    pub(crate) not_ready: usize,
    /// Nodes with a fault that is certain.
    pub(crate) faulty: usize,
    /// Nodes that the gang avoids after failures, or leaves.
    pub(crate) avoided: usize,
    /// Nodes that anti-affinity closes, which another part of the message counts.
    pub(crate) closed: usize,
    pub(crate) too_small: usize,
    /// What the smallest shortage of a node that is too small consists of.
    pub(crate) nearest_miss: String,
    /// Nodes without the label of a required level, by the outermost such level.
    pub(crate) unlabelled: BTreeMap<String, usize>,
    /// Field of the workload that names the levels.
    pub(crate) field: &'static str,
    /// Free capacity of nodes that have too little for one pod, if together they have enough.
    pub(crate) scattered: Option<Scattered>,
}

/// Free amounts that are too small for a pod, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scattered {
    pub resource: String,
    pub free: String,
    /// Of one node.
    pub most: String,
}

impl UnsuitableNodes {
    fn unsuitable(&self) -> usize {
        let unlabelled: usize = self.unlabelled.values().sum();
        let unusable = self.cordoned + self.not_ready + self.faulty;
        self.unmatched + unusable + self.avoided + self.too_small + unlabelled
    }

    /// True if every node holds a pod, and no free capacity is scattered.
    pub(crate) fn is_empty(&self) -> bool {
        self.unsuitable() == 0 && self.scattered.is_none()
    }
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
        let scattered = self.scattered.as_ref().map(ToString::to_string);
        if let Some(scattered) = &scattered
            && self.unsuitable() == 0
        {
            return f.write_str(scattered);
        }
        let nodes = self.suitable + self.unsuitable() + self.closed;
        match self.suitable {
            0 => write!(f, "0/{nodes} nodes are available")?,
            suitable => write!(f, "{suitable}/{nodes} nodes can hold such a pod")?,
        }
        let mut causes = Vec::new();
        if self.unmatched > 0 {
            let text = "did not match nodeSelector, affinity, tolerations or volumes";
            causes.push(format!("{} {text}", self.unmatched));
        }
        if self.cordoned > 0 {
            causes.push(format!("{} cordoned", self.cordoned));
        }
        if self.not_ready > 0 {
            causes.push(format!("{} NotReady", self.not_ready));
        }
        if self.faulty > 0 {
            causes.push(format!("{} faulty", self.faulty));
        }
        if self.avoided > 0 {
            causes.push(format!("{} avoided by this gang", self.avoided));
        }
        if self.too_small > 0 {
            let miss = &self.nearest_miss;
            causes.push(format!("{} too small ({miss})", self.too_small));
        }
        for (key, count) in &self.unlabelled {
            causes.push(format!("{count} without label {key} ({})", self.field));
        }
        if !causes.is_empty() {
            write!(f, ": {}", causes.join(", "))?;
        }
        match scattered {
            Some(scattered) => write!(f, "; {scattered}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Scattered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource,
            free,
            most,
        } = self;
        write!(
            f,
            "{free} {resource} free in parts of at most {most} on a node"
        )
    }
}

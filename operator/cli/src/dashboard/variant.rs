//! A snapshot with other nodes, for what-if.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use lockstep_model::SnapshotFile;
use serde::Deserialize;

/// Label with the name of the node.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// Most nodes that can be added.
const MOST: usize = 1000;

/// Changes of the cluster that a what-if assumes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AssumedNodes {
    /// Nodes on which nothing more is placed.
    pub drained: BTreeSet<String>,
    pub added: Option<AddedNodes>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct AddedNodes {
    /// Node with the labels, taints and resources of the new ones.
    pub like: String,
    pub count: usize,
}

impl AssumedNodes {
    pub fn change(&self, file: &mut SnapshotFile) -> Result<()> {
        let known = |name: &String| file.nodes.iter().any(|n| n.name == *name);
        let like = self.added.iter().map(|added| &added.like);
        if let Some(unknown) = self.drained.iter().chain(like).find(|n| !known(n)) {
            bail!("no node {unknown:?}");
        }
        for node in &mut file.nodes {
            node.unschedulable |= self.drained.contains(&node.name);
        }
        let Some(added) = &self.added else {
            return Ok(());
        };
        if added.count > MOST {
            bail!("at most {MOST} nodes can be added");
        }
        let model = file.nodes.iter().find(|n| n.name == added.like).cloned();
        // New nodes come last: gangs in the file refer to nodes by position.
        for (number, mut node) in (1..=added.count).zip(model.into_iter().cycle()) {
            node.name = format!("{}-added-{number}", added.like);
            node.labels.insert(HOSTNAME.to_owned(), node.name.clone());
            (node.unschedulable, node.ready) = (false, true);
            file.nodes.push(node);
        }
        Ok(())
    }
}

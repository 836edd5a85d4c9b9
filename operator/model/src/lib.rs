//! What the gang scheduler knows of the cluster, and the engine's problem made from it. Sync, no client, no clock.
//!
//! | module | content |
//! |---|---|
//! | [`quantity`], [`requests`] | quantities as bounded integers; what a pod asks for, as kube-scheduler counts it |
//! | [`pod`], [`node`], [`pdb`] | trimmed objects, and the parts of the real ones that they are read from |
//! | [`cluster`] | [`ClusterModel`], kept up to date event by event, and cheap snapshots of it |
//! | [`eligibility`] | which nodes a template may run on |

pub mod cluster;
pub mod dims;
pub mod eligibility;
pub mod node;
pub mod pdb;
pub mod pod;
pub mod quantity;
pub mod requests;
#[cfg(test)]
mod test_support;

pub use cluster::{ClusterModel, Snapshot};
pub use dims::Dims;
pub use eligibility::{Constraints, NodeClass};
pub use node::Node;
pub use pdb::Budget;
pub use pod::Pod;
pub use requests::Resources;

//! What the gang scheduler knows of the cluster, and the engine's problem made from it. Sync, no
//! client, no clock.
//!
//! | module | content |
//! |---|---|
//! | [`quantity`], [`resources`] | quantities as bounded integers; what a pod asks for, as kube-scheduler counts it |
//! | [`pod`], [`node`], [`pdb`], [`priority_class`] | trimmed objects |
//! | [`wire`], [`pod_view`] | the parts of the real objects that they are read from |
//! | [`cluster`] | [`ClusterModel`], kept up to date event by event, and cheap snapshots of it |
//! | [`eligibility`], [`node_class`] | which nodes a template may run on, judged once per class of nodes |
//! | [`gang`] | what the objects of a gang say about it |
//! | [`request`] | a gang that requests capacity as the engine's demand, and its answer as a node for each member |
//! | [`occupancy`], [`units`], [`cost`] | what holds capacity, as the engine's units of disruption, and what evicting them destroys |
//! | [`attempt`], [`rules`], [`victims`] | one gang's attempt at a placement, and the rules of preemption |
//! | [`reservation`], [`work`] | what gangs that wait have reserved, and what is in their way for a while only |
//! | [`snapshot`] | all of that as a file, to ask the engine without the cluster |

pub mod attempt;
pub mod cluster;
pub mod cost;
pub mod dims;
pub mod eligibility;
pub mod gang;
pub mod node;
pub mod node_class;
pub mod occupancy;
pub mod pdb;
pub mod pod;
pub mod pod_view;
pub mod priority_class;
pub mod quantity;
pub mod refusal;
pub mod request;
pub mod reservation;
pub mod resources;
pub mod rules;
pub mod snapshot;
#[cfg(test)]
mod test_support;
pub mod units;
pub mod victims;
pub mod wire;
pub mod work;

pub use attempt::{BackfillPlacement, Eviction, PlacementAttempt};
pub use cluster::{ClusterModel, Snapshot};
pub use cost::CostModel;
pub use dims::Dims;
pub use eligibility::{Constraints, Verdicts};
pub use gang::{Assignments, GangPhase};
pub use node::Node;
pub use node_class::{ClassId, NodeClass};
pub use occupancy::{Occupancy, PlacedGang};
pub use pdb::Budget;
pub use pod::Pod;
pub use priority_class::PriorityClass;
pub use request::{PlacementRequest, Template, TemplateMembers, Unmet};
pub use reservation::{AskingGang, QueueReservation, ReservationsAhead};
pub use resources::Resources;
pub use rules::Rules;
pub use snapshot::SnapshotFile;
pub use units::{GangUnit, Occupant, Source, UnitTable};
pub use victims::{VictimFilter, VictimRules, VictimScope};
pub use work::{BlockedGang, PassingWork, blockers};

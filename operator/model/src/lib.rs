//! What the gang scheduler knows of the cluster, and the engine's problem made from it. Sync, no
//! client, no clock.
//!
//! | module | content |
//! |---|---|
//! | [`quantity`], [`resources`] | quantities as bounded integers; what a pod asks for, as kube-scheduler counts it |
//! | [`slots`] | what of a node only one pod can have: host ports, the node itself |
//! | [`neighbours`] | what pods ask of the pods next to them |
//! | [`volumes`], [`quota`] | claims for volumes and quotas, for which a gang waits before it is placed |
//! | [`share`] | how much of the cluster the gangs of a namespace have |
//! | [`pod`], [`node`], [`pdb`], [`priority_class`] | trimmed objects |
//! | [`partial`], [`volumes_partial`], [`quota_partial`], [`pod_view`] | the parts of the real objects that they are read from |
//! | [`cluster`], [`pod_list`] | [`ClusterModel`], kept up to date event by event, and cheap snapshots of it; all pods in a row |
//! | [`background`] | whether pods that came or went make a difference to gangs |
//! | [`eligibility`], [`node_class`] | which nodes a template may run on, judged once per class of nodes |
//! | [`admitted`] | what the API server makes of a template |
//! | [`gang`] | what the objects of a gang say about it |
//! | [`request`] | a gang that requests capacity as the engine's demand, and its answer as a node for each member |
//! | [`occupancy`], `evictable`, [`units`], [`cost`] | what holds capacity, as the engine's units of disruption, and what evicting them destroys |
//! | [`foreign`], `foreign_units` | gangs of others: which pods are of use only together, and what is lost with one of them |
//! | [`attempt`], [`rules`], [`victims`] | one gang's attempt at a placement, and the rules of preemption |
//! | [`reservation`], [`work`] | what gangs that wait have reserved, and what is in their way for a while only |
//! | [`snapshot`] | all of that as a file, to ask the engine without the cluster |

pub mod admitted;
pub mod attempt;
pub mod background;
pub mod cluster;
pub mod cost;
pub mod dims;
pub mod eligibility;
mod evictable;
pub mod foreign;
mod foreign_units;
pub mod gang;
mod metadata;
pub mod neighbours;
pub mod node;
pub mod node_class;
pub mod occupancy;
pub mod partial;
pub mod pdb;
pub mod pod;
pub mod pod_list;
pub mod pod_view;
pub mod priority_class;
pub mod quantity;
pub mod quota;
pub mod quota_partial;
pub mod refusal;
pub mod request;
pub mod reservation;
pub mod resources;
pub mod rules;
pub mod share;
mod shared;
pub mod slots;
pub mod snapshot;
#[cfg(test)]
mod test_support;
pub mod units;
pub mod unreadable;
pub mod victims;
pub mod volumes;
pub mod volumes_partial;
pub mod work;

pub use admitted::{Admission, AdmittedPod, AdmittedPods};
pub use attempt::{BackfillPlacement, Eviction, PlacementAttempt};
pub use background::AskedAmounts;
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
pub use pod_list::ListedPod;
pub use priority_class::{NoSuchClass, PriorityClass};
pub use quota::{Quota, QuotaCharge};
pub use request::{PlacementRequest, Template, TemplateMembers, Unmet};
pub use reservation::{AskingGang, QueueReservation, ReservationsAhead};
pub use resources::Resources;
pub use rules::Rules;
pub use share::{Shares, Weights};
pub use snapshot::SnapshotFile;
pub use units::{GangUnit, Occupant, Source, UnitTable};
pub use victims::{VictimFilter, VictimRules, VictimScope};
pub use volumes::{Storage, VolumeAnswer, VolumeNeeds};
pub use work::{BlockedGang, PassingWork, blockers};

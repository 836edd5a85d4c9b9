//! The gang scheduler's model of the cluster, and its conversion to the engine's problem. Sync, no
//! client, no clock.
//!
//! | module | content |
//! |---|---|
//! | [`quantity`], [`resources`] | quantities as bounded integers; pod requests as kube-scheduler counts them |
//! | [`slots`] | node resources for a single pod: host ports, the node itself |
//! | [`neighbours`] | constraints of pods on pods next to them |
//! | [`volumes`], [`quota`] | volume claims and quotas, for which a gang is held |
//! | [`share`] | share of the cluster by namespace |
//! | [`pod`], [`node`], [`pdb`], [`priority_class`] | trimmed objects |
//! | [`partial`], [`volumes_partial`], [`quota_partial`], [`pod_view`] | parts of API objects from which the trimmed objects are read |
//! | [`cluster`], [`pod_list`] | [`ClusterModel`], updated by events, with cheap snapshots; list of all pods |
//! | [`background`] | pod churn that does not affect gangs |
//! | [`eligibility`], [`node_class`] | nodes that admit a template, evaluated per class of nodes |
//! | [`admitted`] | pods as admitted by the API server |
//! | [`gang`] | a gang as read from its objects |
//! | [`request`] | a gang as the engine's demand, and the engine's answer as a node per member |
//! | [`occupancy`], `evictable`, [`units`], [`cost`] | running work as units of disruption, and the cost of their eviction |
//! | [`foreign`], `foreign_units` | gangs of other controllers: pods that run only together, and their cost |
//! | [`attempt`], [`rules`], [`victims`] | one gang's placement attempt, and the rules of preemption |
//! | [`reservation`], [`work`] | reservations of waiting gangs, and work that blocks them temporarily |
//! | [`snapshot`] | all of this as a file, to run the engine without a cluster |

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
mod misfit;
pub mod native_group;
pub mod neighbours;
pub mod node;
pub mod node_class;
pub mod occupancy;
pub mod partial;
pub mod pdb;
pub mod pod;
pub mod pod_list;
pub mod pod_view;
pub mod preferences;
mod priority_class;
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
mod unsuitable_nodes;
pub mod victims;
pub mod volumes;
pub mod volumes_partial;
pub mod work;

pub use admitted::{Admission, AdmittedPod, AdmittedPods};
pub use attempt::{BackfillPlacement, Eviction, PlacementAttempt};
pub use background::AskedAmounts;
pub use cluster::{ClusterModel, Snapshot};
pub use cost::{CostModel, VictimCost};
pub use dims::Dims;
pub use eligibility::{Constraints, Verdicts};
pub use gang::GangPhase;
pub use native_group::{ForeignUnit, NativeGroup, NativeKind};
pub use node::{Node, NodeState};
pub use node_class::{ClassId, NodeClass};
pub use occupancy::{Occupancy, PlacedGang};
pub use pdb::Budget;
pub use pod::Pod;
pub use pod_list::ListedPod;
pub use preferences::unmet_preferences;
pub use priority_class::{NoSuchClass, PriorityClass};
pub use quota::{Quota, QuotaCharge};
pub use request::{PlacementRequest, Template, TemplateMembers};
pub use reservation::{AskingGang, QueueReservation, ReservationsAhead};
pub use resources::Resources;
pub use rules::Rules;
pub use share::{Shares, Weights};
pub use snapshot::SnapshotFile;
pub use units::{GangUnit, Occupant, Source, UnitTable};
pub use unsuitable_nodes::{Misfit, UnsuitableNodes};
pub use victims::{VictimFilter, VictimRules, VictimScope};
pub use volumes::{Storage, VolumeAnswer, VolumeNeeds};
pub use work::{BlockedGang, PassingWork, blockers, permit_alike};

//! The gang scheduler's model of the cluster, and its conversion to the engine's problem. Sync, no
//! client, no clock.
//!
//! | module | content |
//! |---|---|
//! | [`parse`] | parts of API objects from which the trimmed objects are read |
//! | [`snapshot`] | all of this as a file, to run the engine without a cluster |
//! | [`demand`] | a gang as the engine's demand, its placement attempt, its reservation, and why it does not fit |
//! | [`eviction`] | running work as units of disruption: what may be evicted, and what that costs |
//! | [`cluster`] | [`ClusterModel`], updated by events, with cheap snapshots; nodes that admit a template |
//! | [`nodes`] | nodes, their classes and dimensions |
//! | [`quota`], [`volumes`] | quotas and volume claims, for which a gang is held |
//! | [`pods`] | pods and their resources; gangs, native groups, disruption budgets, priority classes |
//! | [`common`] | quantities as bounded integers, and what all objects share |
//!
//! A module uses only modules below it in this table.

pub mod cluster;
pub mod common;
pub mod demand;
pub mod eviction;
pub mod nodes;
pub mod parse;
pub mod pods;
pub mod quota;
pub mod snapshot;
#[cfg(test)]
mod test_support;
pub mod volumes;

pub use cluster::background::RequestedAmounts;
pub use cluster::eligibility::{Constraints, Verdicts};
pub use cluster::pod_list::ListedPod;
pub use cluster::{ClusterModel, Snapshot};
pub use demand::attempt::{BackfillPlacement, Eviction, PlacementAttempt};
pub use demand::preferences::unmet_preferences;
pub use demand::request::{PlacementRequest, Template, TemplateMembers};
pub use demand::reservation::{QueueReservation, Requester};
pub use demand::share::{Shares, Weights};
pub use demand::unsuitable_nodes::{Misfit, UnsuitableNodes};
pub use eviction::cost::{CostModel, SavedWork, VictimCost};
pub use eviction::occupancy::{Occupancy, PlacedGang};
pub use eviction::rules::Rules;
pub use eviction::units::{GangUnit, Occupant, Source, UnitTable};
pub use eviction::victims::{VictimFilter, VictimRules, VictimScope};
pub use eviction::work::{BlockedGang, PassingWork, blockers, permit_alike};
pub use nodes::dims::Dims;
pub use nodes::node::Node;
pub use nodes::node_class::{ClassId, NodeClass};
pub use pods::admitted::{Admission, AdmittedPod, AdmittedPods};
pub use pods::native_group::{ForeignUnit, NativeGroup, NativeKind};
pub use pods::pdb::Budget;
pub use pods::pod::Pod;
pub use pods::priority_class::{NoSuchClass, PriorityClass};
pub use pods::resources::Resources;
pub use quota::{Quota, QuotaCharge};
pub use snapshot::SnapshotFile;
pub use volumes::{Storage, VolumeCheck, VolumeNeeds};

//! Custom resource types of Lockstep.
//!
//! The Rust types are the source of everything that describes the API: the manifests in `crds/`,
//! the limits and CEL rules in them, and the reference in `docs/reference/api.md` are generated
//! from this crate (`make generate`).
//!
//! | module | content |
//! |---|---|
//! | [`workload`] | `TrainingWorkload`, the object that users apply |
//! | [`scheduling`] | `Workload` and `PodGroup`, the scheduling objects of one workload |
//! | [`restart_order`] | `RestartOrder`, what the manager tells the node agents |
//! | [`node_agent`] | `NodeAgent`, what a node agent tells the manager |
//! | [`condition`], [`names`], [`member`] | condition types and reasons, names and labels, member addresses |
//! | [`gangs`], [`membership`] | which members of a spec are placed and restarted together, and which of them run |
//! | [`words`] | what messages have in common: counts, times, lost work |
//! | [`worded!`] | enums whose variants are written as words |
//! | [`ids`] | identities as types: UIDs, keys of gangs and restart domains, nodes, versions |

pub mod admission;
pub mod condition;
pub mod crds;
pub mod gangs;
pub mod ids;
pub mod key;
pub mod member;
pub mod membership;
pub mod names;
pub mod node_agent;
pub mod restart_order;
pub mod scheduling;
pub mod template;
pub mod time;
pub mod worded;
pub mod words;
pub mod workload;

pub use node_agent::{NodeAgent, NodeAgentStatus};
pub use restart_order::{RestartOrder, RestartOrderSpec};
pub use scheduling::{PodGroup, PodGroupSpec, PodGroupStatus, Workload, WorkloadSpec};
pub use template::PodTemplate;
pub use workload::{TrainingWorkload, TrainingWorkloadSpec, TrainingWorkloadStatus};

/// API group of the objects that users, the manager and the agents exchange.
pub const TRAINING_GROUP: &str = "training.lockstep.dev";
/// The one served version of both groups.
pub const VERSION: &str = "v1alpha1";

//! Custom resource types of Lockstep.
//!
//! The Rust types are the source of the API: `make generate` generates the manifests in `crds/`,
//! with their limits and CEL rules, and the reference in `docs/reference/api.md`.
//!
//! | module | content |
//! |---|---|
//! | [`workload`] | `TrainingWorkload`, the object that users apply |
//! | [`scheduling`] | `Workload` and `PodGroup`, the scheduling objects of one workload |
//! | [`native_group`] | native groups of `scheduling.k8s.io`, and what an API server supports of them |
//! | [`provisioning`] | `ProvisioningRequest` of Cluster Autoscaler, and marks of members for autoscalers |
//! | [`kueue`] | the part of Kueue's API that the integration reads and writes |
//! | [`restart_order`] | `RestartOrder`, orders of the manager to the node agents |
//! | [`node_agent`] | `NodeAgent`, reports of a node agent to the manager |
//! | [`node_signal`] | signals about nodes: faults, and announcements of maintenance or removal |
//! | [`node_state`] | the state of a node, as all decisions read it |
//! | [`condition`], [`names`], [`member`] | condition types and reasons, names and labels, member addresses |
//! | [`member_pod`], [`tier`] | what pods of members say of themselves, and how they restart in place |
//! | [`gangs`], [`membership`] | members that are placed and restarted together, and members that run |
//! | [`words`] | common parts of messages: counts, times, lost work |
//! | [`merge_patch`] | the patch between two versions of an object |
//! | [`worded!`] | enums with one word per variant |
//! | [`ids`] | identities as types: UIDs, keys of gangs and restart domains, nodes, versions |

#![deny(missing_docs)]

pub mod condition;
pub mod crds;
pub mod gangs;
pub mod ids;
pub mod key;
pub mod kueue;
pub mod member;
pub mod member_pod;
pub mod membership;
pub mod merge_patch;
pub mod names;
pub mod native_group;
pub mod node_agent;
pub mod node_signal;
pub mod node_state;
pub mod provisioning;
pub mod restart_order;
pub mod scheduling;
pub mod template;
pub mod tier;
pub mod time;
pub mod worded;
pub mod words;
pub mod workload;

pub use node_agent::{NodeAgent, NodeAgentStatus};
pub use node_signal::{NodeHealthMode, NodeSignal, SignalLevel};
pub use node_state::{NodeState, Outlook, Reach};
pub use restart_order::{RestartOrder, RestartOrderSpec};
pub use scheduling::{PodGroup, PodGroupSpec, PodGroupStatus, Workload, WorkloadSpec};
pub use template::PodTemplate;
pub use workload::{TrainingWorkload, TrainingWorkloadSpec, TrainingWorkloadStatus};

/// API group of TrainingWorkload, RestartOrder and NodeAgent.
pub const TRAINING_GROUP: &str = "training.lockstep.dev";
/// The only served version of both groups.
pub const VERSION: &str = "v1alpha1";

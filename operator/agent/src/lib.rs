//! The node agent: a thin shell around the decisions in `lockstep_node`.
//!
//! The agent lists the runtime's containers and watches restart orders. It persists its records,
//! stops containers, and reports exits and arrivals in the `NodeAgent` of its node.
//!
//! | module | content |
//! |---|---|
//! | [`runtime`] | what the agent needs of a container runtime |
//! | [`cri`] | a container runtime over CRI v1 |
//! | [`orders`] | the watch of the cluster's restart orders |
//! | [`supervisors`] | links to the supervisors in the members' training containers |
//! | [`store`] | persistent records |
//! | [`agent`] | the loop |
//! | `reconcile` | the work of the loop while the runtime is busy |
//! | [`guard`] | the self-test before the loop starts |
//! | [`health`], [`metrics`] | readiness and metrics of the process |
//! | [`args`] | command line |

pub mod agent;
pub mod args;
mod backoff;
pub mod cri;
mod grpc_code;
pub mod guard;
pub mod health;
pub mod metrics;
pub mod orders;
mod publish;
mod reconcile;
pub mod runtime;
mod stops;
pub mod store;
pub mod supervisors;
#[cfg(test)]
mod tests;
mod token_bucket;

pub use agent::Agent;
pub use args::AgentArgs;

//! The node agent: a thin shell around the decisions in `lockstep_lifecycle::node`.
//!
//! It looks at the runtime and at the restart orders, persists what it must not forget, stops
//! containers, and tells the manager of exits and arrivals through the `NodeAgent` of its node.
//!
//! | module | content |
//! |---|---|
//! | [`runtime`] | what the agent needs of a container runtime |
//! | [`cri`] | a container runtime over CRI v1 |
//! | [`orders`] | the restart orders of the cluster, by one watch |
//! | [`supervisors`] | the supervisors in the members' training containers, by a link to each |
//! | [`store`] | records that survive the agent |
//! | [`agent`] | the loop |
//! | `reconcile` | what the loop does while the runtime is busy |
//! | [`guard`] | the self-test before it |
//! | [`health`], [`metrics`] | what the process says about itself |
//! | [`args`] | command line |

pub mod agent;
mod allowance;
pub mod args;
pub mod cri;
mod grpc_code;
pub mod guard;
pub mod health;
pub mod metrics;
pub mod orders;
mod patience;
mod publish;
mod reconcile;
pub mod runtime;
mod stops;
pub mod store;
pub mod supervisors;
#[cfg(test)]
mod tests;

pub use agent::Agent;
pub use args::AgentArgs;

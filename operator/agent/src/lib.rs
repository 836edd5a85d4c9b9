//! The node agent: a thin shell around the decisions in `lockstep_lifecycle::node`.
//!
//! It looks at the runtime and at the restart orders, persists what it must not forget, stops containers, and tells the
//! manager of exits and arrivals through the `NodeAgent` of its node.
//!
//! | module | content |
//! |---|---|
//! | [`runtime`] | what the agent needs of a container runtime |
//! | [`orders`] | the restart orders of the cluster, by one watch |
//! | [`store`] | records that survive the agent |
//! | [`agent`] | the loop |
//! | [`args`] | command line |

pub mod agent;
pub mod args;
pub mod orders;
mod publish;
pub mod runtime;
pub mod store;
#[cfg(test)]
mod tests;

pub use agent::Agent;
pub use args::AgentArgs;

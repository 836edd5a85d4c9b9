//! A pure model of the kubelet, and runtimes and hollow nodes for tests.
//!
//! | module | content |
//! |---|---|
//! | [`model`] | pod spec + state of the runtime + time -> pod status and actions; no I/O, no clock |
//! | [`latency`] | durations on a node, measured or zero |
//! | [`runtime`] | runtimes, which execute the actions, and their state for the node's agent |
//! | [`hollow`] | any number of nodes in a process: registration, leases, pods, agents, control interface |
//! | [`clock`] | wall time that follows tokio's clock |
//! | [`traces`] | recordings of real clusters, for replay |

pub mod clock;
pub mod hollow;
pub mod latency;
pub mod model;
pub mod runtime;
pub mod traces;

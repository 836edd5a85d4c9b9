//! A pure model of the kubelet, and the runtimes and hollow nodes that bring it to life in tests.
//!
//! | module | content |
//! |---|---|
//! | [`model`] | pod spec + what the runtime shows + time -> pod status and actions; no I/O, no clock |
//! | [`latency`] | how long things take on a node, measured or zero |
//! | [`runtime`] | what carries out the actions, and what the node's agent sees of it |
//! | [`hollow`] | any number of nodes in one process: registration, leases, pods, agents, control interface |
//! | [`clock`] | wall time that follows tokio's clock |
//! | [`traces`] | what real clusters showed, to be replayed |

pub mod clock;
pub mod hollow;
pub mod latency;
pub mod model;
pub mod runtime;
pub mod traces;

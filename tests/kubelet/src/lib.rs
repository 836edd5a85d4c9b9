//! A pure model of the kubelet, and the runtimes and hollow nodes that bring it to life in tests.
//!
//! | module | content |
//! |---|---|
//! | [`model`] | pod spec + what the runtime shows + time -> pod status and actions; no I/O, no clock |
//! | [`latency`] | how long things take on a node, measured or zero |

pub mod latency;
pub mod model;

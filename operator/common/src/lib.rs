//! Parts that the manager and the node agent share as processes.
//!
//! | module | content |
//! |---|---|
//! | [`api_server`] | which API server to connect to, and its Retry-After responses |
//! | [`connection`] | connections that detect an unreachable peer |
//! | [`endpoints`] | health and metrics over HTTP |
//! | [`log`] | command-line arguments and setup of the log |
//! | [`policy_self_test`] | whether an admission policy is in force and admits this process |
//! | [`signals`] | SIGTERM and SIGINT |
//! | [`watch`] | lists and watches of one kind, with retries |

pub mod api_server;
pub mod connection;
pub mod endpoints;
pub mod log;
pub mod policy_self_test;
pub mod signals;
pub mod watch;

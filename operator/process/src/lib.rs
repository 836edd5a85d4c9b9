//! What the manager and the node agent have in common as processes.
//!
//! | module | content |
//! |---|---|
//! | [`api_server`] | which API server to talk to, and when to come back to one that is busy |
//! | [`connection`] | connections that notice when the other end is gone |
//! | [`endpoints`] | health and metrics over HTTP |
//! | [`log`] | arguments and start of the log |
//! | [`signals`] | the signals that end a process |

pub mod api_server;
pub mod connection;
pub mod endpoints;
pub mod log;
pub mod signals;

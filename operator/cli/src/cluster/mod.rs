//! Everything that is read from and written to the API server, and nothing else is in here.

mod connect;
mod install;
mod read;
mod watch;
mod workloads;
mod write;

pub use connect::{ClusterReader, with_flags};
pub use read::Objects;
pub use watch::Changes;

//! All access to the API server.

mod connect;
mod doctor;
mod install;
mod logs;
mod read;
mod watch;
mod workloads;
mod write;

pub use connect::{ClusterReader, names_in_kubeconfig, with_flags};
pub use logs::{HowMuch, Lines};
pub use read::Objects;
pub use watch::Changes;

//! Everything that is read from and written to the API server, and nothing else is in here.

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

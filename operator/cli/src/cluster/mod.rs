//! All access to the API server.

mod autoscaler;
mod bug_report;
mod canary;
mod connect;
mod doctor;
mod install;
mod kueue;
mod live;
mod logs;
mod read;
mod rights;
mod watch;
mod workloads;
mod write;

pub use connect::{ClusterReader, context_name, names_in_kubeconfig, with_flags};
pub use live::LiveView;
pub use logs::{HowMuch, Lines};
pub use watch::Changes;

//! The kubelet model over recorded scenarios and over real processes.

mod recorded;
mod subprocess;

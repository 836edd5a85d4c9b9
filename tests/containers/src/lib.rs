//! Real containers for tests: a containerd of its own in a folder, and what a kubelet does with it.
//!
//! Needs root, and containerd, runc and a static busybox as distributions package them (`make
//! container-packages`). `LOCKSTEP_CONTAINERD=DIR` takes `containerd`, its shim and `ctr` from
//! there, such as a later version.

mod config;
pub mod containerd;
pub mod kubelet;

pub use containerd::Containerd;
pub use kubelet::{Kubelet, Pod};

/// Generated from `proto/kubelet.proto` by `make generate`.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod api {
    include!("generated/runtime.v1.rs");
}

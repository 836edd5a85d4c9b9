//! Generated from `proto/api.proto` by `make generate`.
#![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]

include!("generated/runtime.v1.rs");

//! The commands over clusters in memory.

// `cfg(test)` always holds here; it tells clippy that helpers of tests may unwrap.
#![cfg(test)]

mod agreement;
mod completing;
mod doctoring;
mod explaining;
mod members;
mod mistakes;
mod pictures;
mod problems;
mod program;
mod queueing;
mod screens;
mod server;
mod snapshots;
mod support;
mod terminal;
mod verbs;
mod whatif;

//! The commands over clusters in memory.

// `cfg(test)` always holds here; it tells clippy that helpers of tests may unwrap.
#![cfg(test)]

mod agreement;
mod explaining;
mod program;
mod queueing;
mod snapshots;
mod support;
mod whatif;

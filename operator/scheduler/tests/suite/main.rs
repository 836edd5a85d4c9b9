//! Scenarios with many gangs, over a cluster in memory.

// `cfg(test)` always holds here; it tells clippy that helpers of tests may unwrap.
#![cfg(test)]

mod queueing;
mod reach;

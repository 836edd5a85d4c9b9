//! The commands over clusters in memory.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

mod agreement;
mod bug_reports;
mod canaries;
mod checkpoints;
mod columns;
mod completing;
mod dashboard;
mod dashboard_fixture;
mod dashboard_program;
mod doctoring;
mod explaining;
mod integrations;
mod kubectl;
mod live_server;
mod members;
mod mistakes;
mod pictures;
mod problems;
mod program;
mod queueing;
mod runtimes;
mod screens;
mod server;
mod snapshots;
mod support;
mod terminal;
mod verbs;
mod whatif;

//! The supervisor as a real process.

mod agents;
mod checkpoints;
mod children;
mod frameworks;
mod log;
mod support;

//! The supervisor as a real process.

mod agents;
mod children;
mod log;
mod support;

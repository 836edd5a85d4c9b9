//! Tests of the manager against a fake API server, and of its program.

// `cfg(test)` always holds here. It allows unwrap in helpers (clippy).
#![cfg(test)]

mod acting;
mod command;
mod documented;
mod fake_api;
mod logging;
mod mass_start;
mod smoke;

//! Links to supervisors: real ones as processes, and others that break every rule.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking"
)]

mod hostile;
mod node;
mod process;
mod real;

//! Links to supervisors: real processes, and misbehaving peers.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking"
)]

mod hostile;
mod node;
mod process;
mod real;

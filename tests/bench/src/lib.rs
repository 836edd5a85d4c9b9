//! What benchmarks share: the instance formats `preempt-quality/1` and `/2`, and the
//! control arms.

pub mod fleet;
pub mod growth;
pub mod instance;
pub mod mixed;
pub mod passes;
pub mod questions;
pub mod ratio;
pub mod scenes;

use std::time::{Duration, Instant};

/// That of the manager's image.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What something comes to, and how long it takes.
#[expect(clippy::disallowed_methods, reason = "a benchmark")]
pub fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let out = what();
    (out, start.elapsed())
}

//! Common code of the benchmarks: the instance formats `preempt-quality/1` and `/2`, and the
//! control arms.

pub mod arms;
pub mod fleet;
pub mod growth;
pub mod instance;
pub mod mixed;
pub mod month;
pub mod passes;
pub mod questions;
pub mod racks;
pub mod ratio;
pub mod scenes;

use std::time::{Duration, Instant};

/// Allocator of the manager's image.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Result of a function and its duration.
#[expect(clippy::disallowed_methods, reason = "a benchmark")]
pub fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let out = what();
    (out, start.elapsed())
}

/// Like [`timed`], in CPU time of this thread, which other processes do not affect, in steps of the
/// kernel's clock. Zero on systems without this clock.
pub fn timed_on_cpu<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let on_cpu = || {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let first = stat.split(' ').next().and_then(|ns| ns.parse().ok());
        Duration::from_nanos(first.unwrap_or_default())
    };
    let start = on_cpu();
    let out = what();
    (out, on_cpu().saturating_sub(start))
}

//! The one place that reads the clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use lockstep_run::machine::Moment;

/// Time since the machine booted: the same in every process, so that probes can compare it with
/// what the supervisor wrote.
pub fn now() -> Moment {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

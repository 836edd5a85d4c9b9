//! The only module that reads clocks.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use lockstep_supervisor::machine::Moment;

/// Time since boot, equal in all processes, so probes can compare it with the supervisor's state
/// file.
pub fn now() -> Moment {
    read(ClockId::Monotonic)
}

/// Time since 1970 by the node's clock, for messages to other programs.
pub fn time_of_day() -> Duration {
    read(ClockId::Realtime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

//! Crash back-off of a container, as in client-go's `flowcontrol.Backoff` for the kubelet.

use std::time::Duration;

use chrono::{DateTime, Utc};

/// First pause. The first restart is immediate. This is the pause before the second restart.
const INITIAL: Duration = Duration::from_secs(10);
/// Longest pause.
const MAX: Duration = Duration::from_mins(5);

/// State of a container's back-off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    /// Pause after the next exit, and the time of its last increase.
    entry: Option<(Duration, DateTime<Utc>)>,
}

impl Backoff {
    /// Earliest start of a container that exited at `finished_at`. `None` means at once.
    pub(super) fn until(&self, finished_at: DateTime<Utc>, scale: f64) -> Option<DateTime<Utc>> {
        let (pause, raised) = self.entry?;
        if expired(raised, finished_at, scale) {
            None
        } else {
            Some(finished_at + pause.mul_f64(scale))
        }
    }

    /// Records a restart after an exit at `finished_at`: the pause doubles, or is reset after a
    /// healthy time of twice the longest pause.
    pub(super) fn raise(&mut self, finished_at: DateTime<Utc>, now: DateTime<Utc>, scale: f64) {
        let pause = match self.entry {
            Some((pause, raised)) if !expired(raised, finished_at, scale) => (pause * 2).min(MAX),
            _ => INITIAL,
        };
        self.entry = Some((pause, now));
    }
}

/// True if the container ran long enough between its last restart and this exit to reset the pause.
fn expired(raised: DateTime<Utc>, exit: DateTime<Utc>, scale: f64) -> bool {
    exit - raised
        > chrono::Duration::from_std((MAX * 2).mul_f64(scale)).unwrap_or(chrono::Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;

    #[test]
    fn pauses_double_from_ten_seconds_to_five_minutes() {
        let mut b = Backoff::default();
        let mut now = DateTime::<Utc>::UNIX_EPOCH;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = b.until(now, 1.0).map_or(0, |t| (t - now).num_seconds());
            pauses.push(pause);
            let restart = now + TimeDelta::seconds(pause);
            b.raise(now, restart, 1.0);
            now = restart + TimeDelta::seconds(1);
        }
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn ten_healthy_minutes_reset_the_pause_and_one_second_less_does_not() {
        let t0 = DateTime::<Utc>::UNIX_EPOCH;
        let mut b = Backoff::default();
        b.raise(t0, t0, 1.0);
        b.raise(t0, t0, 1.0);
        assert_eq!(
            b.until(t0 + TimeDelta::seconds(600), 1.0),
            Some(t0 + TimeDelta::seconds(620))
        );
        assert_eq!(b.until(t0 + TimeDelta::seconds(601), 1.0), None);
    }
}

//! How far each watch has come, compared with what this process has written.
//!
//! A controller that decides from a cache older than its own last write does things twice. So every
//! write's resourceVersion is remembered per workload, and a pass waits until the watch of that
//! kind has shown that version or a later one. Versions of one resource are comparable numbers
//! (KEP-5504); one that is not a number is not waited for.

use std::collections::HashMap;
use std::time::Duration;

use lockstep_api::ids::ResourceVersion;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::watched_kind::WatchedKind;

/// Longest wait for an own write to appear. A watch that is behind for longer than this cannot be
/// told from a write whose object was deleted again before the watch was restarted; the
/// preconditions of later writes hold in either case.
const PATIENCE: Duration = Duration::from_secs(30);

/// The highest version that each watch has shown.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<HashMap<WatchedKind, u64>>);

impl Seen {
    pub(super) fn note(&self, kind: WatchedKind, version: Option<u64>) {
        if let Some(version) = version {
            let mut seen = self.0.lock();
            let highest = seen.entry(kind).or_default();
            *highest = version.max(*highest);
        }
    }

    fn has(&self, kind: WatchedKind, version: u64) -> bool {
        self.0
            .lock()
            .get(&kind)
            .is_some_and(|seen| *seen >= version)
    }
}

/// Reads a resourceVersion.
pub fn version(resource_version: Option<&str>) -> Option<u64> {
    resource_version?.parse().ok()
}

/// Writes of one workload that have not been seen yet.
#[derive(Clone, Debug, Default)]
pub struct OwnWrites(HashMap<WatchedKind, (u64, Instant)>);

impl OwnWrites {
    /// Remembers a write.
    pub fn wrote(&mut self, kind: WatchedKind, written: &ResourceVersion, now: Instant) {
        if let Some(version) = version(Some(written.as_str())) {
            let entry = self.0.entry(kind).or_insert((version, now));
            *entry = (version.max(entry.0), now);
        }
    }

    /// Whether all remembered writes have been seen; forgets those that were.
    pub(super) fn caught_up(&mut self, seen: &Seen, now: Instant) -> bool {
        self.0
            .retain(|kind, (version, at)| !seen.has(*kind, *version) && now < *at + PATIENCE);
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    fn at(version: &str) -> ResourceVersion {
        version.parse().unwrap()
    }

    #[test]
    fn a_pass_waits_until_the_watch_of_the_kind_has_shown_its_last_write() {
        let (seen, mut writes, now) = (
            Seen::default(),
            OwnWrites::default(),
            SystemClock.monotonic(),
        );
        writes.wrote(WatchedKind::Pod, &at("12"), now);
        writes.wrote(WatchedKind::Pod, &at("10"), now);
        seen.note(WatchedKind::Node, Some(99));
        seen.note(WatchedKind::Pod, Some(11));
        assert!(!writes.caught_up(&seen, now));
        seen.note(WatchedKind::Pod, Some(12));
        assert!(writes.caught_up(&seen, now));
    }

    #[test]
    fn a_write_whose_object_vanished_unseen_is_given_up_after_a_while() {
        let (seen, mut writes, now) = (
            Seen::default(),
            OwnWrites::default(),
            SystemClock.monotonic(),
        );
        writes.wrote(WatchedKind::Pod, &at("12"), now);
        assert!(!writes.caught_up(&seen, now + PATIENCE - Duration::from_secs(1)));
        assert!(writes.caught_up(&seen, now + PATIENCE));
    }

    #[test]
    fn a_version_that_is_no_number_is_not_waited_for() {
        let mut writes = OwnWrites::default();
        writes.wrote(WatchedKind::Pod, &at("opaque"), SystemClock.monotonic());
        assert!(writes.caught_up(&Seen::default(), SystemClock.monotonic()));
    }
}

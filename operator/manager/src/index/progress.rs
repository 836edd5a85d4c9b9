//! Own writes that the watches have not delivered yet.
//!
//! A controller that decides from a cache older than its own last write repeats actions. So a pass
//! waits until the watch of each written kind has delivered the written resourceVersion or a later
//! one. Versions of a resource are comparable numbers (KEP-5504). Other versions are not awaited.

use std::collections::HashMap;
use std::time::Duration;

use lockstep_api::ids::ResourceVersion;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::watched_kind::WatchedKind;

/// Longest wait for an own write. If the object was deleted before the watch restarted, the write
/// never appears. Preconditions protect later writes anyway.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct DeliveredVersions(Mutex<HashMap<WatchedKind, u64>>);

impl DeliveredVersions {
    pub(super) fn note(&self, kind: WatchedKind, version: Option<u64>) {
        if let Some(version) = version {
            let mut versions = self.0.lock();
            let highest = versions.entry(kind).or_default();
            *highest = version.max(*highest);
        }
    }

    fn has(&self, kind: WatchedKind, version: u64) -> bool {
        self.0
            .lock()
            .get(&kind)
            .is_some_and(|delivered| *delivered >= version)
    }
}

pub fn version(resource_version: Option<&str>) -> Option<u64> {
    resource_version?.parse().ok()
}

#[derive(Clone, Debug, Default)]
pub struct OwnWrites(HashMap<WatchedKind, (u64, Instant)>);

impl OwnWrites {
    pub fn wrote(&mut self, kind: WatchedKind, written: &ResourceVersion, now: Instant) {
        if let Some(version) = version(Some(written.as_str())) {
            let entry = self.0.entry(kind).or_insert((version, now));
            *entry = (version.max(entry.0), now);
        }
    }

    /// Forgets delivered writes.
    pub(super) fn caught_up(&mut self, delivered: &DeliveredVersions, now: Instant) -> bool {
        self.0
            .retain(|kind, (version, at)| !delivered.has(*kind, *version) && now < *at + PATIENCE);
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
            DeliveredVersions::default(),
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
    fn a_write_whose_object_vanished_unseen_counts_as_seen_after_a_timeout() {
        let (seen, mut writes, now) = (
            DeliveredVersions::default(),
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
        assert!(writes.caught_up(&DeliveredVersions::default(), SystemClock.monotonic()));
    }
}

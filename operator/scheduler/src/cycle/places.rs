//! The place of each waiting gang in the queue, in the status of its pod group.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_api::scheduling::QueueStatus;

use super::state::Cycle;
use crate::context::Context;
use crate::gang::pending::Pending;
use crate::gang::state::GangState;
use crate::plan::QueuePlace;

/// Number of gangs of each priority that have their place in the status.
const SHOWN: usize = 100;

/// Time after which a small change is written.
const SMALL_CHANGES: Duration = Duration::from_mins(1);

impl Cycle<'_> {
    /// Notes the places of the gangs that still wait at the end of the cycle.
    pub(super) fn note_places(&mut self, places: &[QueuePlace]) {
        let waiting = places.iter().filter(|p| !p.grows).map(|p| p.gang);
        let waiting = waiting.filter(|&at| {
            self.gangs[at]
                .pending
                .as_ref()
                .is_some_and(Pending::waits_in_queue)
        });
        let mut of_priority: BTreeMap<i32, usize> = BTreeMap::new();
        let mut ahead: BTreeMap<usize, usize> = BTreeMap::new();
        for (number, at) in waiting.enumerate() {
            let equals = of_priority.entry(self.gangs[at].priority()).or_default();
            *equals += 1;
            if *equals <= SHOWN {
                ahead.insert(at, number);
            }
        }
        for (at, gang) in self.gangs.iter_mut().enumerate() {
            let ahead = ahead.get(&at);
            let place = ahead.map(|&ahead| place(&self.context, gang, ahead));
            if gang.status.queue != place {
                gang.status_mut().queue = place;
            }
        }
    }
}

/// The place to write, or the written one while it differs little.
fn place(context: &Context<'_>, gang: &GangState, ahead: usize) -> QueueStatus {
    let reservation = gang.status.reservation.as_ref();
    let now = QueueStatus {
        ahead: i32::try_from(ahead).unwrap_or(i32::MAX),
        starts_by: reservation.and_then(|r| r.starts_at),
        evaluated_at: context.now,
    };
    let Some(written) = &gang.status.queue else {
        return now;
    };
    let shifts = match (written.starts_by, now.starts_by) {
        (Some(then), Some(now)) => (now - then).abs().to_std().unwrap_or_default() > SMALL_CHANGES,
        (then, now) => then != now,
    };
    let changes = (written.ahead, written.starts_by) != (now.ahead, now.starts_by);
    let due = || context.due(written.evaluated_at, SMALL_CHANGES);
    if shifts || written.ahead.abs_diff(now.ahead) > 1 || (changes && due()) {
        now
    } else {
        written.clone()
    }
}

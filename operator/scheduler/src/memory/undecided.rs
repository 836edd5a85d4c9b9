//! Gangs whose placement search ended without an answer.
//!
//! The search for a placement of several shapes has a step limit. A gang without an answer may fit,
//! so no work is preempted for it at first. A search with ten times the steps follows after an
//! exponential back-off, one per cycle. If that has no answer either, it searches victims.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

use crate::memory::backoff::backoff;

/// Factor on the usual steps.
const LONGER: u64 = 10;
/// Longer searches per cycle.
const IN_A_CYCLE: usize = 1;

#[derive(Debug, Default)]
pub(crate) struct UndecidedGangs(HashMap<String, Undecided>);

#[derive(Clone, Copy, Debug)]
struct Undecided {
    tries: i32,
    next_try: DateTime<Utc>,
}

impl UndecidedGangs {
    /// Factor on the usual steps for the next search. `extended`: number of longer searches in this
    /// cycle.
    pub fn effort(&self, uid: &str, now: DateTime<Utc>, extended: usize) -> u64 {
        let due = self.0.get(uid).is_some_and(|u| u.next_try <= now);
        if due && extended < IN_A_CYCLE {
            LONGER
        } else {
            1
        }
    }

    /// Time of the next longer search, if a search with this effort ends without an answer.
    pub fn next_try(&self, uid: &str, now: DateTime<Utc>, effort: u64) -> DateTime<Utc> {
        match self.0.get(uid) {
            Some(undecided) if effort > 1 => now + backoff(undecided.tries + 1),
            Some(undecided) => undecided.next_try,
            None => now,
        }
    }

    pub fn note_extended(&mut self, uid: &str, now: DateTime<Utc>) {
        if let Some(undecided) = self.0.get_mut(uid) {
            undecided.tries += 1;
            undecided.next_try = now + backoff(undecided.tries);
        }
    }

    pub fn failed(&mut self, uid: &str, now: DateTime<Utc>) {
        let first = Undecided {
            tries: 0,
            next_try: now,
        };
        self.0.entry(uid.to_owned()).or_insert(first);
    }

    pub fn contains(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    pub fn settle(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| exists(uid));
    }
}

//! Gangs whose placement search ended without an answer.
//!
//! The search for a placement of several shapes has a step limit. A gang without an answer may fit,
//! so no work is preempted for it. A search with ten times the steps follows after an exponential
//! back-off, one per cycle.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

use crate::backoff::backoff;

/// Factor on the usual steps.
const LONGER: u64 = 10;
/// Longer searches per cycle.
const IN_A_CYCLE: usize = 1;

#[derive(Debug, Default)]
pub(crate) struct UnknownGangs(HashMap<String, Unknown>);

#[derive(Clone, Copy, Debug)]
struct Unknown {
    tries: i32,
    next_try: DateTime<Utc>,
}

impl UnknownGangs {
    /// Factor on the usual steps for the next search. `longer`: longer searches of the cycle so
    /// far.
    pub fn effort(&mut self, uid: &str, now: DateTime<Utc>, longer: &mut usize) -> u64 {
        let Some(unknown) = self.0.get_mut(uid).filter(|u| u.next_try <= now) else {
            return 1;
        };
        if *longer == IN_A_CYCLE {
            return 1;
        }
        *longer += 1;
        unknown.tries += 1;
        unknown.next_try = now + backoff(unknown.tries);
        LONGER
    }

    /// Records a search without an answer. Returns the time of the next, longer search.
    pub fn failed(&mut self, uid: &str, now: DateTime<Utc>) -> DateTime<Utc> {
        let first = Unknown {
            tries: 0,
            next_try: now,
        };
        let unknown = self.0.entry(uid.to_owned()).or_insert(first);
        unknown.next_try
    }

    pub fn knows(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    /// Forgets a gang once it is placed.
    pub fn settle(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    pub fn retain(&mut self, there: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| there(uid));
    }
}

//! Gangs of which a search could not say whether they fit.
//!
//! The search for a placement of several shapes ends after so many steps. A gang for which it ended
//! without an answer waits: it may fit as it is, so nobody is evicted for it. It is searched for
//! again with ten times the steps, one such gang in a cycle, after a time that doubles.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

use crate::backoff::backoff;

/// How many times the usual steps a longer search may take.
const LONGER: u64 = 10;
/// Longer searches of one cycle.
const IN_A_CYCLE: usize = 1;

/// Gangs of which a search could not say whether they fit, by the UID of the pod group.
#[derive(Debug, Default)]
pub(crate) struct UnknownGangs(HashMap<String, Unknown>);

#[derive(Clone, Copy, Debug)]
struct Unknown {
    /// Longer searches so far.
    tries: i32,
    next_try: DateTime<Utc>,
}

impl UnknownGangs {
    /// How many times the usual steps the search for a gang may take now; `longer` counts the longer
    /// ones of the cycle.
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

    /// A search for the gang ended without an answer. Returns when the next longer one comes.
    pub fn failed(&mut self, uid: &str, now: DateTime<Utc>) -> DateTime<Utc> {
        let first = Unknown {
            tries: 0,
            next_try: now,
        };
        let unknown = self.0.entry(uid.to_owned()).or_insert(first);
        unknown.next_try
    }

    /// Whether it is one of them.
    pub fn knows(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    /// The gang is placed.
    pub fn settle(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Forgets gangs that are gone.
    pub fn retain(&mut self, there: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| there(uid));
    }
}

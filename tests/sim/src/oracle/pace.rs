//! No actor writes the same object again and again (I8).

use std::collections::{BTreeMap, VecDeque};

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_manager::stepped::WatchedKind;

use crate::api::{Verb, Write};

/// Most writes of the manager on one object, of one verb, within [`WINDOW`].
const MOST: usize = 60;
const WINDOW: TimeDelta = TimeDelta::minutes(1);

/// Recent writes of the manager.
#[derive(Default)]
pub(super) struct Pace {
    lately: BTreeMap<(WatchedKind, String, String, Verb), VecDeque<DateTime<Utc>>>,
}

impl Pace {
    pub fn judge(&mut self, write: &Write) -> Vec<String> {
        let key = (
            write.kind,
            write.key.namespace.to_string(),
            write.key.name.to_string(),
            write.verb,
        );
        let lately = self.lately.entry(key).or_default();
        lately.push_back(write.at);
        while lately.front().is_some_and(|at| *at < write.at - WINDOW) {
            lately.pop_front();
        }
        let many = lately.len();
        let spins = many == MOST;
        let why = || format!("{many} such writes within {} s", WINDOW.num_seconds());
        spins.then(why).into_iter().collect()
    }
}

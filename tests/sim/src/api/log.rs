//! Log of all writes, for oracles.

use chrono::{DateTime, Utc};
use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;
use serde_json::Value;

use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Create,
    Update,
    UpdateStatus,
    /// An eviction was requested and granted. The deletion that follows is a separate entry.
    Evict,
    /// Deletion was requested.
    Delete,
    /// The object no longer exists.
    Gone,
}

/// The author of a write.
#[derive(Clone, Copy, Debug)]
pub struct Author<'a> {
    pub who: &'a str,
    /// True if the request names the UID or the version of its object.
    pub guarded: bool,
}

impl<'a> Author<'a> {
    /// An author whose requests have no precondition.
    pub fn unguarded(who: &'a str) -> Self {
        Self {
            who,
            guarded: false,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub at: DateTime<Utc>,
    pub who: String,
    pub verb: Verb,
    /// True if the request named the UID or the version of the object, or created it.
    pub guarded: bool,
    pub kind: WatchedKind,
    pub key: Key,
    pub uid: String,
    /// The object after the write; its last state if it no longer exists.
    pub object: Arc<Value>,
}

impl Write {
    /// One line: time, author, verb, object.
    pub fn line(&self) -> String {
        let at = self.at.format("%H:%M:%S%.3f");
        let (who, kind) = (&self.who, self.kind.as_str());
        format!(
            "{at} {who} {:?} {kind} {} {}",
            self.verb, self.key, self.uid
        )
    }
}

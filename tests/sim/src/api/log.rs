//! Everything that was written, for oracles.

use chrono::{DateTime, Utc};
use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;
use serde_json::Value;

use std::sync::Arc;

/// What was done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// It is there.
    Create,
    /// Its metadata or spec has changed.
    Update,
    /// Its status has changed.
    UpdateStatus,
    /// Its eviction was asked for and granted. The deletion that follows is told by itself.
    Evict,
    /// Its deletion was asked for.
    Delete,
    /// It is gone.
    Gone,
}

/// Who writes.
#[derive(Clone, Copy, Debug)]
pub struct Author<'a> {
    /// Which actor.
    pub who: &'a str,
    /// Whether the request names the UID or the version of the object that it is meant for.
    pub guarded: bool,
}

impl<'a> Author<'a> {
    /// Somebody whose request is for whatever has that name.
    pub fn unguarded(who: &'a str) -> Self {
        Self {
            who,
            guarded: false,
        }
    }
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// When.
    pub at: DateTime<Utc>,
    /// Which actor.
    pub who: String,
    /// What.
    pub verb: Verb,
    /// Whether the request named the UID or the version of the object, or made it.
    pub guarded: bool,
    /// WatchedKind of the object.
    pub kind: WatchedKind,
    /// Namespace and name of the object.
    pub key: Key,
    /// UID of the object.
    pub uid: String,
    /// The object after the write; for one that is gone, as it was last.
    pub object: Arc<Value>,
}

impl Write {
    /// One line: when, who, what.
    pub fn line(&self) -> String {
        let at = self.at.format("%H:%M:%S%.3f");
        let (who, kind) = (&self.who, self.kind.name());
        format!(
            "{at} {who} {:?} {kind} {} {}",
            self.verb, self.key, self.uid
        )
    }
}

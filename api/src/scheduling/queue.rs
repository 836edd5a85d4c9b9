//! The place of a waiting gang in the queue, for its owner.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::{count, time};

/// Place of a waiting gang in the queue. It names no other gang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Number of waiting gangs before this one.
    pub ahead: i32,
    /// Latest start, if the gang has a reservation with a latest start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_by: Option<DateTime<Utc>>,
    /// Time at which these values were computed. They are written anew when `ahead` changes by more
    /// than one or `startsBy` by more than a minute, and after a minute if they have changed at all.
    pub evaluated_at: DateTime<Utc>,
}

impl QueueStatus {
    /// The place in words: `3 gangs ahead; starts by 2026-11-18T12:06:41Z at the latest`.
    pub fn summary(&self) -> String {
        let ahead = count(usize::try_from(self.ahead).unwrap_or_default(), "gang");
        match self.starts_by {
            Some(at) => format!("{ahead} ahead; starts by {} at the latest", time(at)),
            None => format!("{ahead} ahead"),
        }
    }
}

//! What decides how an answer looks besides its content.

use chrono::{DateTime, Utc};

/// How an answer looks.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The moment that ages count from.
    pub now: DateTime<Utc>,
    /// Whether columns that are left out otherwise are shown.
    pub wide: bool,
    /// Whether words that tell good from bad have colours.
    pub color: bool,
}

impl Look {
    /// As it is written to a file.
    pub fn plain(now: DateTime<Utc>) -> Self {
        Self {
            now,
            wide: false,
            color: false,
        }
    }
}

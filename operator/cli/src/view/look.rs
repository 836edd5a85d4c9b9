//! Presentation of a view, apart from its content.

use chrono::{DateTime, Utc};

#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Reference time of ages.
    pub now: DateTime<Utc>,
    /// Show the columns of `-o wide`.
    pub wide: bool,
    pub color: bool,
    /// Columns of the terminal; `None` for a file.
    pub width: Option<usize>,
}

impl Look {
    /// Presentation for a file.
    pub fn plain(now: DateTime<Utc>) -> Self {
        Self {
            now,
            wide: false,
            color: false,
            width: None,
        }
    }
}

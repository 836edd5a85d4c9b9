use chrono::{DateTime, Utc};

#[derive(Clone, Copy, Debug)]
pub struct RenderOptions {
    pub now: DateTime<Utc>,
    pub wide: bool,
    pub color: bool,
    /// Columns of the terminal; `None` for a file.
    pub width: Option<usize>,
}

impl RenderOptions {
    pub fn plain(now: DateTime<Utc>) -> Self {
        Self {
            now,
            wide: false,
            color: false,
            width: None,
        }
    }
}

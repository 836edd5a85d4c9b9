//! Why an answer is what it is, as data for events, status and the command line.

/// Why these victims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// Highest priority of a unit that was considered; `None` when nobody had to be.
    pub priority_bound: Option<i32>,
}

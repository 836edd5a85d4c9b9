//! Why an answer is what it is, as data for events, status and the command line.

use crate::preempt::FollowOn;

/// What an answer was made under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// Highest priority of a unit that was considered; `None` when nobody had to be, or all lower ones were.
    pub priority_bound: Option<i32>,
    /// Victims that would evict in turn, and what that costs; empty when that was not looked at.
    pub follow_on: Vec<FollowOn>,
}

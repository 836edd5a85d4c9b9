//! The time of the next decision without a change. Each check of a deadline also yields the time at
//! which its result changes.

use std::time::Duration;

use chrono::{DateTime, Utc};

#[must_use = "a wake-up that is dropped is a deadline that passes unnoticed"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wake(Option<DateTime<Utc>>);

impl Wake {
    pub const NEVER: Self = Self(None);

    pub fn min(self, other: Self) -> Self {
        Self(self.0.into_iter().chain(other.0).min())
    }

    pub fn after(self, now: DateTime<Utc>) -> Option<Duration> {
        (self.0? - now).to_std().ok()
    }
}

#[must_use = "ask `passed`"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Passed,
    At(DateTime<Utc>),
}

impl Due {
    pub fn of(at: DateTime<Utc>, now: DateTime<Utc>) -> Self {
        if now >= at {
            Self::Passed
        } else {
            Self::At(at)
        }
    }

    /// True if the time has passed. Otherwise sets `wake`, so that no check is forgotten.
    pub fn passed(self, wake: &mut Wake) -> bool {
        match self {
            Self::Passed => true,
            Self::At(at) => {
                *wake = wake.min(Wake(Some(at)));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_has_not_passed_sets_the_wake_up_and_the_earliest_wins() {
        let at = |s| DateTime::from_timestamp(s, 0).unwrap();
        let mut wake = Wake::NEVER;
        assert!(Due::of(at(5), at(5)).passed(&mut wake));
        assert_eq!(wake, Wake::NEVER);
        assert!(!Due::of(at(9), at(5)).passed(&mut wake));
        assert!(!Due::of(at(7), at(5)).passed(&mut wake));
        assert_eq!(wake.after(at(5)), Some(Duration::from_secs(2)));
        assert_eq!(wake.min(Wake::NEVER), wake);
    }
}

//! Negotiation of the protocol version.

/// Versions that this crate supports.
pub const VERSIONS: Versions = Versions {
    oldest: 1,
    newest: 2,
};

/// First version whose `Progress` has words, and which has requests for checkpoints.
pub(crate) const SECOND: u16 = 2;

/// True if a connection of this version has requests for checkpoints.
pub fn has_requests(version: u16) -> bool {
    version >= SECOND
}

/// An inclusive range of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Oldest supported version.
    pub oldest: u16,
    /// Newest supported version.
    pub newest: u16,
}

impl Versions {
    /// Newest common version, or `None` if the ranges do not overlap.
    pub fn agree(self, other: Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// True if the range contains the version.
    pub fn contains(self, version: u16) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

#[cfg(test)]
mod tests {
    use super::Versions;

    #[test]
    fn the_newest_version_that_both_know_is_spoken() {
        let agree = |a: (u16, u16), b: (u16, u16)| {
            let range = |(oldest, newest)| Versions { oldest, newest };
            (range(a).agree(range(b)), range(b).agree(range(a)))
        };
        assert_eq!(agree((1, 1), (1, 1)), (Some(1), Some(1)));
        assert_eq!(agree((1, 3), (2, 5)), (Some(3), Some(3)));
        assert_eq!(agree((1, 2), (3, 4)), (None, None), "no version in common");
        assert_eq!(
            agree((2, 1), (1, 2)),
            (None, None),
            "a range that holds nothing"
        );
    }
}

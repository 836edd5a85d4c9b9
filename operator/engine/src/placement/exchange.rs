//! Exchanges of patterns, and their order.

use super::patterns::KindIx;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    pub kind: KindIx,
    pub from: usize,
    pub to: usize,
}

/// Rate and exchange in one number, for fast comparison. Equal rates are ordered by kind and
/// patterns. Patterns of a kind fit into 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rated(i128);

impl Rated {
    pub fn new(rate: i64, by: Exchange) -> Self {
        let by = (by.kind as u64) << 32 | (by.from as u64) << 16 | by.to as u64;
        Self(i128::from(rate) << 64 | i128::from(by))
    }

    pub fn rate(self) -> i64 {
        (self.0 >> 64) as i64
    }

    pub fn exchange(self) -> Exchange {
        let by = self.0 as u64;
        Exchange {
            kind: (by >> 32) as KindIx,
            from: (by >> 16 & 0xffff) as usize,
            to: (by & 0xffff) as usize,
        }
    }
}

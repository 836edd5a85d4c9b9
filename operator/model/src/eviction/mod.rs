//! Running work as units of disruption: what may be evicted, and what that costs.

pub mod cost;
pub(crate) mod evictable;
pub(crate) mod foreign_units;
pub mod occupancy;
pub mod rules;
pub mod units;
pub mod victims;
pub mod work;

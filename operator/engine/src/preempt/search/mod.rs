//! Upper bounds: a victim set that is changed step by step, and the local search over such sets.

mod by_replica;
mod by_worth;
mod cover;
pub(super) mod local_search;
mod several;
pub(super) mod state;

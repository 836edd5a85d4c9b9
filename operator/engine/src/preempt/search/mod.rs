//! Upper bounds: a mutable victim set, and local search over such sets.

mod by_replica;
mod by_slot;
mod by_worth;
mod cover;
pub(super) mod local_search;
mod replicas;
mod several;
pub(super) mod state;

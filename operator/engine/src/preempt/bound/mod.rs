//! Lower bounds on the cost of every victim set, and proofs that a set is the best.

pub(super) mod branch_and_bound;
pub(super) mod components;
pub(super) mod lagrangian;
mod max_flow;
mod table;

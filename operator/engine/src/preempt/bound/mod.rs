//! Lower bounds of the cost of every victim set, and proofs of optimality.

pub(super) mod branch_and_bound;
pub(super) mod components;
pub(super) mod lagrangian;
mod max_flow;
mod table;

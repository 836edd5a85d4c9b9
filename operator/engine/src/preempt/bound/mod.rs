//! Lower bounds of the cost of every victim set.

pub(super) mod lagrangian;
mod max_flow;

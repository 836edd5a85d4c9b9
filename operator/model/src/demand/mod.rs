//! A gang as the engine's demand, its placement attempt, and why it fits on no node.

pub mod attempt;
pub(crate) mod misfit;
pub mod preferences;
pub mod request;
pub mod reservation;
pub mod share;
pub(crate) mod unsuitable_nodes;

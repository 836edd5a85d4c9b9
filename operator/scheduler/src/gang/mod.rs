//! State of one gang within a cycle, the decision about it, and the status to write.

pub(crate) mod checkpoint;
pub mod decision;
mod growth;
pub(crate) mod member_pods;
pub(crate) mod moves;
mod moving;
pub mod pending;
pub(crate) mod state;
pub(crate) mod unusable;

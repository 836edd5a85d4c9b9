//! The gang scheduler's loop over the index. [`lockstep_scheduler`] decides.
//!
//! | stage | module | client |
//! | --- | --- | --- |
//! | read the inputs of a cycle | `input` | no |
//! | wake up, confirm own writes, decide | [`task`] | in `act` alone |
//! | send the decided steps | `act` | yes |

pub(crate) mod act;
pub(crate) mod input;
pub(crate) mod metrics;
pub mod task;
#[cfg(test)]
mod tests;

//! The gang scheduler's loop over the index. What is decided is in [`lockstep_scheduler`].
//!
//! | stage | module | client |
//! |---|---|---|
//! | take what a cycle needs out of the index | `input` | no |
//! | wake up, wait for own writes, decide | [`task`] | in `act` alone |
//! | send what was decided | `act` | yes |

mod act;
pub(crate) mod input;
pub(crate) mod metrics;
pub mod task;
#[cfg(test)]
mod tests;

//! Decisions of Lockstep, as functions of what is seen and of the time.
//!
//! Nothing here reads a clock, holds a client or keeps state: [`decide`] turns the view of one workload into a [`Plan`],
//! [`summary`] turns it into a status for people and tools, and [`node::decide`] does the same for the agent of one node.
//! Every decision is level-triggered: it depends on what is there and never on how it came about, so a pass from any
//! intermediate state, after a crash at any point, goes on where the last one stopped.
//!
//! | module | content |
//! |---|---|
//! | [`view`], [`pods`], [`settings`] | the input: one workload and everything that belongs to it |
//! | [`plan`] | the output: record something in the ledger, or act, never both |
//! | [`gangs`], [`ranks`] | which members form gangs and restart domains, which run together, and how they are numbered |
//! | [`growth`] | for whom the scheduler loop seeks room |
//! | [`build`] | the objects that are made for a workload: pods, scheduling objects, Service, orders |
//! | [`node`] | decisions of a node's agent |

pub mod build;
mod decide;
pub mod gangs;
pub mod growth;
pub mod node;
pub mod plan;
pub mod pods;
mod policy;
pub mod ranks;
pub mod settings;
mod summary;
#[cfg(test)]
mod testing;
pub mod tier;
mod transitions;
pub mod view;

pub use decide::decide;
pub use plan::{Action, Object, Pass, Plan};
pub use pods::PodView;
pub use settings::Settings;
pub use summary::summary;
pub use tier::Tier;
pub use transitions::{EventNote, EventType, transitions};
pub use view::WorkloadView;

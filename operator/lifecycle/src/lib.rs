//! Decisions of Lockstep, as functions of what is seen and of the time.
//!
//! Nothing here reads a clock, holds a client or keeps state: [`decide`] turns the view of one
//! workload into a [`Plan`], or, where nothing is to be done, into a status for people and tools;
//! [`node::decide`] does the same for the agent of one node. Every decision is level-triggered: it
//! depends on what is there and never on how it came about, so a pass from any intermediate state,
//! after a crash at any point, goes on where the last one stopped.
//!
//! | module | content |
//! |---|---|
//! | [`view`], [`pods`], [`nodes`], [`zones`], [`settings`] | the input: one workload and everything that belongs to it |
//! | [`plan`] | the output: record something in the ledger, or act, never both |
//! | `pass` | the driver: `facts` -> `ledger` -> `record` -> `diff`, `summary` |
//! | `changes`, `status` | what stages change in the ledger in common; ledger and summary as a status |
//! | `observed` | the input without the status, which is all that decisions may look at |
//! | `objects` | the objects that are made for a workload: pods, scheduling objects, Service, orders |
//! | [`node`] | decisions of a node's agent |

mod arrivals;
mod cause;
mod changes;
mod diff;
mod facts;
mod failure;
mod ledger;
mod meeting;
pub mod node;
pub mod nodes;
mod objects;
mod observed;
mod orders;
mod pass;
pub mod plan;
pub mod pods;
mod record;
pub mod settings;
mod start_problem;
mod status;
mod summary;
pub mod tier;
mod transitions;
pub mod view;
mod waiting;
mod wake;
mod words;
pub mod zones;

pub use objects::hash::spec_hash;
pub use pass::decide;
pub use plan::{Action, Object, Pass, Plan};
pub use pods::PodView;
pub use settings::LifecycleSettings;
pub use tier::Tier;
pub use transitions::{EventNote, EventType, transitions};
pub use view::WorkloadView;

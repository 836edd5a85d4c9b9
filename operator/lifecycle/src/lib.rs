//! The decisions of Lockstep, as pure functions of observations and time.
//!
//! This crate reads no clock, holds no client and keeps no state. [`decide`] turns the view of one
//! workload into a [`Plan`]. Decisions are level-triggered: a pass continues correctly from any
//! intermediate state, such as after a crash.
//!
//! | module | content |
//! |---|---|
//! | [`view`], [`gangs`], [`pods`], [`nodes`], [`zones`], [`settings`] | input: one workload and all objects that belong to it |
//! | [`plan`] | output: a ledger to record, or actions, never both |
//! | `pass` | driver: `facts` -> `ledger` -> `record` -> `diff`, `summary` |
//! | `changes`, `status` | ledger changes shared by stages; conversion of ledger and summary to a status |
//! | `observed` | the input without the status, which decisions must not read |
//! | [`provisioning`] | from the node demand of all gangs to objects for a node autoscaler |
//! | `objects` | builds the objects of a workload: pods, scheduling objects, Service, orders |

mod arrivals;
mod cause;
mod changes;
mod checkpoints;
mod diff;
mod domains;
mod facts;
mod failure;
pub mod gangs;
mod kueue;
mod ledger;
mod messages;
mod moves;
pub mod nodes;
mod objects;
mod observed;
mod orders;
mod pass;
pub mod plan;
pub mod pods;
pub mod provisioning;
mod record;
pub mod settings;
mod start_problem;
mod status;
mod summary;
mod transitions;
pub mod view;
mod waiting;
mod wake;
pub mod zones;

pub use objects::hash::spec_hash;
pub use objects::pod::altered_part;
pub use objects::supervise::obstacle;
pub use pass::decide;
pub use plan::{Action, Object, Pass, Plan};
pub use pods::PodView;
pub use settings::LifecycleSettings;
pub use transitions::{EventNote, EventType, transitions};
pub use view::WorkloadView;

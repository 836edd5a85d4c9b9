//! The gang scheduler: a deterministic function from cluster state, settings and time to a list of
//! requests. It has no client and no clock. The manager's loop and `kubectl lockstep whatif` run
//! the same cycle.
//!
//! | stage | module |
//! |---|---|
//! | input: nodes, pods and gangs, from the index or from a snapshot file | [`input`] |
//! | state of one gang within a cycle, the decision about it, its status | [`gang`] |
//! | free capacity, reservations, usage per namespace | `capacity` |
//! | existing placements: kept, lost, adopted | `cycle::{maintain, overlap, unusable}`, `refusal` |
//! | preemptions in progress, and limits of evictions | `cycle::{intents, victims, limits}`, [`pace`] |
//! | the queue: decision for each gang in order | `cycle::{queue, turn, place, preempt, outcome}` |
//! | moves of running gangs away from nodes with signals | `cycle::{moves, seek}` |
//! | reservations for waiting gangs | `cycle::reservation` |
//! | gangs that exchange nodes | `cycle::exchange`, `waits` |
//! | status of each gang, written if it has changed | `cycle::status`, [`messages`] |
//! | the decision as a list of requests; size limit of an object | [`plan`], [`size`] |
//! | skipped cycles and skipped gangs; verdicts shared by gangs with equal requests | `memory` |
//!
//! A cycle depends only on its input and the time. Its memory ([`Memory`]) may be lost at any
//! moment. State that must survive is in the status of the pod groups: the placement, reserved
//! nodes, the preemption intent with the time of its first evictions, and refusals of
//! kube-scheduler.
//!
//! A cycle writes each decision to the status first, and acts on a decision only once it is
//! persisted. Before the first eviction, the intent is persisted and the preemptor's gated pods
//! exist.

mod capacity;
pub mod config;
mod context;
mod cycle;
pub mod gang;
pub mod input;
mod memory;
pub mod messages;
pub mod pace;
pub mod plan;
mod refusal;
mod settings;
pub mod size;
mod waits;

pub use capacity::namespace_usage::namespace_shares;
pub use cycle::schedule;
pub use gang::decision::{self, Decision};
pub use gang::pending::{self, Pending};
pub use gang::state::GangState;
pub use input::hold::{self, GangPhase};
pub use input::intent_id::intent_id;
pub use input::members;
pub use input::snapshot;
pub use input::{GangInput, PodSource, SchedulingInput};
pub use memory::Memory;
pub use plan::{
    IdleAccelerators, PodRef, QueuePlace, SchedulingCycle, SchedulingPlan, StatusWrite, Step,
    Vacated, waves,
};
pub use settings::SchedulerSettings;
pub use waits::Moves;

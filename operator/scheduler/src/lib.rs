//! The gang scheduler as a pure function: cluster state and time in, a list of requests out. No
//! client, no clock. The manager's loop and `kubectl lockstep whatif` run the same cycle.
//!
//! | stage | module |
//! |---|---|
//! | input: nodes, pods and gangs, from the index or from a snapshot file | [`input`], [`snapshot`] |
//! | state of one gang within a cycle, its pods, free capacity | `state`, `status_to_be`, `member_pods`, `capacity` |
//! | existing placements: kept, lost, adopted | `cycle::{maintain, overlap}`, `refusal`, `claims` |
//! | reservations for pods that do not exist yet | `cycle` |
//! | preemptions in progress, and limits of evictions | `cycle::{intents, victims, limits}`, [`pace`] |
//! | held gangs; usage per namespace | [`hold`], `namespace_usage` |
//! | the queue: the turn of each gang and its outcome | `cycle::{queue, turn, place, preempt, outcome}`, [`growth`] |
//! | reservations for waiting gangs | `cycle::reservation`, `standing` |
//! | gangs that exchange nodes | `cycle::exchange`, `waits` |
//! | status of each gang, written if it differs | `cycle::status`, [`messages`] |
//! | the decision as a list of requests; size limit of an object | [`plan`], [`size`] |
//! | skipped cycles and skipped gangs; verdicts shared by gangs with equal requests | `rest`, `no_victims`, `asks` |
//!
//! A cycle depends only on its input and the time. Its memory ([`Memory`]) may be lost at any
//! moment. State that must survive is in the status of the pod groups: the placement, reserved
//! nodes, the preemption intent with the time of its first evictions, and refusals of
//! kube-scheduler.
//!
//! A cycle writes each decision to the status first, and acts on a decision only once it is
//! persisted. Before the first eviction, the intent is persisted and the preemptor's gated pods
//! exist.

mod asks;
mod backoff;
mod capacity;
mod claims;
pub mod config;
mod context;
mod cycle;
pub mod decision;
pub mod growth;
pub mod hold;
pub mod input;
mod intent_id;
mod member_pods;
mod memory;
pub mod messages;
mod namespace_usage;
mod no_victims;
mod occupancy;
pub mod pace;
pub mod pending;
pub mod plan;
mod refusal;
mod rest;
mod settings;
pub mod size;
pub mod snapshot;
mod standing;
mod state;
mod status_to_be;
mod unknown;
mod waits;

pub use cycle::schedule;
pub use decision::Decision;
pub use input::{GangInput, GangSources, PodSource, SchedulingInput};
pub use intent_id::intent_id;
pub use memory::Memory;
pub use namespace_usage::namespace_shares;
pub use pending::{GangName, Pending};
pub use plan::{
    PodRef, QueuePlace, SchedulingCycle, SchedulingPlan, StatusWrite, Step, Vacated, waves,
};
pub use settings::SchedulerSettings;
pub use state::GangState;
pub use status_to_be::StatusToBe;

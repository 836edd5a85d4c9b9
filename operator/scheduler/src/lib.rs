//! The gang scheduler as a function: what there is and the time in, a list of requests out. No
//! client, no clock. The manager's loop and `kubectl lockstep whatif` call the same cycle.
//!
//! | stage | module |
//! |---|---|
//! | what is read of nodes, pods and gangs; the same from a snapshot file | [`input`], [`snapshot`] |
//! | one gang within a cycle, its pods, and what is free | `state`, `status_to_be`, `member_pods`, `capacity` |
//! | placements that exist: kept, lost, adopted | `cycle::{maintain, overlap}`, `refusal`, `claims` |
//! | what is reserved for pods that do not exist yet | `cycle::reserve` |
//! | preemptions under way, and how many pods they may evict in a minute | `cycle::intents`, `cycle::victims`, [`pace`] |
//! | what a gang waits for before it is placed; what each namespace has | [`hold`], `namespace_usage` |
//! | the queue: which members, placed where, at the expense of which work | `cycle::{queue, place, preempt}`, [`growth`] |
//! | what is reserved for gangs that wait | `cycle::reservation`, `standing` |
//! | gangs that get each other's nodes | `cycle::exchange`, `waits` |
//! | the status of each gang, written where it differs | `cycle::status`, [`messages`] |
//! | the decision as a list of requests; what fits into one object | [`plan`], [`size`] |
//! | when a cycle is not run at all, or not for a gang; what gangs wait for that ask for the same | `rest`, `cycle::judged`, `no_victims`, `asks` |
//!
//! A cycle is a function of what is seen and of the time. Its memory ([`Memory`]) may be lost at
//! any moment: what must survive is in the status of the pod groups: the placement, the nodes that
//! are reserved for a gang that waits, the intent to preempt with the time of its first evictions,
//! and what kube-scheduler refused.
//!
//! A cycle first writes what it has decided into the status and acts on a decision only once it is
//! there: an intent to preempt is persisted, and the preemptor's gated pods exist, before anything
//! is evicted.

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

//! Access to the API server, shared by both loops.
//!
//! | module | content |
//! |---|---|
//! | [`clients`] | connections with deadline, fence and counter |
//! | [`error`] | one error for requests, by what it means to the sender |
//! | [`write`] | patches and deletes with their preconditions |
//! | `actor` | bounded number of requests in flight |
//! | `pace` | adapts that bound to the load of the server |

pub(crate) mod actor;
pub mod clients;
pub mod error;
pub(crate) mod metrics;
pub(crate) mod pace;
pub(crate) mod write;

pub use actor::Actor;
pub use pace::Pace;

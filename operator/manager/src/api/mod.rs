//! The way to the API server that both loops share.
//!
//! | module | content |
//! |---|---|
//! | [`clients`] | connections with deadline, fence and counter |
//! | [`error`] | one error for requests, by what it means to the sender |
//! | [`write`] | patches and deletes with their preconditions |
//! | `actor` | requests in flight, up to a bound |
//! | `pace` | how far below that bound, by how the server answers |

pub(crate) mod actor;
pub mod clients;
pub mod error;
pub(crate) mod metrics;
pub(crate) mod pace;
pub(crate) mod write;

pub use actor::Actor;
pub use pace::Pace;

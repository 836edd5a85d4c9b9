//! The documents of the dashboard's pages: functions of what was read and the time.
//!
//! | module | content |
//! |---|---|
//! | [`view`] | what was read: objects, rights, freshness |
//! | [`occupancy`] | who uses which node |
//! | [`needs`] | what needs a change by a person |
//! | [`frame`], [`overview`], [`queue`], [`workload`], [`list`], [`map`], [`incidents`], [`health`] | one document each |
//! | [`pages`] | the documents of a page |
//! | [`reader`] | the events for one reader |
//! | [`recorded`] | a snapshot file as what was read |
//! | [`variant`] | a snapshot with other nodes, for what-if |

pub mod frame;
pub mod health;
pub mod incidents;
pub mod list;
pub mod map;
pub mod needs;
pub mod occupancy;
pub mod overview;
pub mod pages;
pub mod queue;
pub mod reader;
pub mod recorded;
pub mod variant;
pub mod view;
pub mod workload;

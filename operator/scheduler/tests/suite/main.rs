//! Scenarios with many gangs, over a cluster in memory.

mod queueing;

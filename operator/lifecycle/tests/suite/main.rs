//! Scenarios with one workload, over a cluster in memory.

mod basics;

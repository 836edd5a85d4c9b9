//! Scenarios with one workload, over a cluster in memory.

// `cfg(test)` always holds here. It allows unwrap in helpers (clippy).
#![cfg(test)]

mod accounting;
mod all_nodes;
mod arrivals;
mod asked_again;
mod barrier;
mod basics;
mod charges;
mod checkpoints;
mod completion;
mod containers;
mod dependencies;
mod disturbed_requests;
mod elastic;
mod failures;
mod final_failures;
mod gates;
mod hangs;
mod incidents;
mod kueue;
mod late_agents;
mod lost_status;
mod meetings;
mod mixed;
mod moves;
mod native_groups;
mod native_placement;
mod objects;
mod one_member;
mod outages;
mod placements;
mod preemption;
mod property;
mod provisioning;
mod reality;
mod repairs;
mod replacements;
mod sequences;
mod server_errors;
mod shown;
mod silent_nodes;
mod slow_news;
mod starts;
mod stragglers;
mod webhooks;

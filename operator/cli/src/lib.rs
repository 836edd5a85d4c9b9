//! `kubectl lockstep`: why a workload waits or was preempted, what would happen to one that is not
//! there yet, and the cluster as a file in which to look that up later.
//!
//! | module | content | client |
//! |---|---|---|
//! | [`args`] | commands and flags | no |
//! | [`change`] | the one field that a verb writes | no |
//! | [`cluster`] | everything that is read from and written to the API server | yes |
//! | [`objects`] | what every command asks of objects | no |
//! | [`problem`] | what goes wrong there, in one sentence each | no |
//! | [`record`], [`gangs`] | what was read as a [`SnapshotFile`](lockstep_model::SnapshotFile) | no |
//! | [`file`] | snapshots and manifests on disk | no |
//! | [`whatif`] | the engine's answer for a manifest, over a snapshot | no |
//! | [`published`] | what the manager's configuration says of preemption | no |
//! | [`queue`] | which gangs wait, in their order | no |
//! | [`list`], [`status`] | how workloads are, many or one | no |
//! | [`logs`] | whose log is asked for | no |
//! | [`top`], [`agents`] | accelerators that gangs hold, agents of nodes | no |
//! | [`doctor`], [`doctor_facts`] | whether the installation is healthy | no |
//! | [`version`] | which versions meet here | no |
//! | [`explain`] | what status and events say about a workload | no |
//! | [`view`] | how answers look | no |
//! | [`commands`], [`outcome`] | each command from arguments to exit code | in `cluster` alone |
//!
//! `restart`, `suspend`, `resume` and `checkpoint` write one field each; nothing else writes to a cluster. Equal input gives equal output: a snapshot carries the time at
//! which it is judged.

pub mod agents;
pub mod args;
pub mod change;
pub mod cluster;
pub mod commands;
pub mod doctor;
pub mod doctor_facts;
pub mod explain;
pub mod file;
pub mod gangs;
pub mod list;
pub mod logs;
pub mod objects;
pub mod outcome;
pub mod problem;
pub mod published;
pub mod queue;
pub mod record;
pub mod status;
pub mod top;
pub mod version;
pub mod view;
pub mod whatif;

//! `kubectl lockstep`: explains why a workload waits or was preempted, predicts the placement of a
//! new workload, and saves the cluster as a snapshot file.
//!
//! | module | content | client |
//! |---|---|---|
//! | [`args`] | commands and flags | no |
//! | [`change`] | the field that a command writes | no |
//! | [`requests`] | answers to a request for a checkpoint | no |
//! | [`cluster`] | all access to the API server | yes |
//! | [`objects`] | helpers for objects | no |
//! | [`problem`] | errors of requests, in one sentence each | no |
//! | [`roles`] | which shipped role grants a right | no |
//! | [`record`], [`gangs`] | input as a [`SnapshotFile`](lockstep_model::SnapshotFile) | no |
//! | [`convert`] | conversion of jobs of other projects | no |
//! | [`file`] | snapshot and manifest files | no |
//! | [`whatif`] | the scheduler's answer for a manifest over a snapshot | no |
//! | [`published`] | preemption rules of the manager's configuration | no |
//! | [`queue`] | waiting gangs in their order | no |
//! | [`status`] | state of a workload | no |
//! | [`members`], [`logs`] | selection of members and of their logs | no |
//! | [`top`], [`agents`], [`nodes`] | accelerators of gangs, agents and signals of nodes | no |
//! | [`doctor`], [`doctor_facts`] | checks of the installation | no |
//! | [`docs`] | addresses of the documentation | no |
//! | [`bug_report`] | an archive of whitelisted fields with pseudonyms | no |
//! | [`version`] | versions of the components | no |
//! | [`explain`] | status and events of a workload | no |
//! | [`dashboard`] | documents of the dashboard's pages | no |
//! | [`view`] | output formats | no |
//! | [`reports`] | reports of the verbs that read the cluster | in `cluster` alone |
//! | [`serve`] | the dashboard's pages and data over HTTP | in `cluster` alone |
//! | [`commands`], [`outcome`] | commands from arguments to exit code | in `cluster` alone |
//!
//! Only `restart`, `suspend`, `resume` and `checkpoint` write to a cluster, one field each, and `doctor
//! --canary`, which removes what it creates. Equal
//! input gives equal output: a snapshot contains the time of its evaluation.

pub mod agents;
pub mod args;
pub mod bug_report;
pub mod change;
pub mod cluster;
pub mod commands;
pub mod dashboard;
pub mod docs;
pub mod doctor;
pub mod doctor_facts;
pub mod explain;
pub mod file;
pub mod gangs;
pub mod logs;
pub mod members;
pub mod nodes;
pub mod objects;
pub mod outcome;
pub mod problem;
pub mod published;
pub mod queue;
pub mod record;
pub mod reports;
pub mod requests;
pub mod roles;
pub mod serve;
pub mod status;
pub mod top;
pub mod version;
pub mod view;
pub mod whatif;

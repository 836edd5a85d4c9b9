//! Failures of members: detection, policy, and restarts of their domains.
//!
//! | module | content |
//! | --- | --- |
//! | [`domain`] | a restart domain in one pass, and the states of its members |
//! | [`detect`] | failures of a member, from pod status and reports |
//! | [`policy`] | the failure policy: the response to the failures of one domain |
//! | [`restart_budget`] | charges and refunds; restarts by the kubelet that no agent reported |
//! | [`incident`] | opens, extends and supersedes incidents; restarts without a failure |
//! | [`replacement`] | replacements of single pods, beside an incident |
//! | [`dependency`] | gangs that stop while a group in `dependsOn` is broken |
//! | [`barrier`] | progress of an open incident: arrivals, overdue members, recovery |

pub(crate) mod barrier;
pub(crate) mod dependency;
pub(crate) mod detect;
pub(crate) mod domain;
pub(crate) mod incident;
pub(crate) mod policy;
mod replacement;
pub(crate) mod restart_budget;

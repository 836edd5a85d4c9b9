//! Failures of members: detection, policy, and restarts of their domains.
//!
//! | module | content |
//! | --- | --- |
//! | [`detect`] | detects failures of a member's pod |
//! | [`policy`] | evaluates the failure policy for one failure |
//! | [`others`], [`restart_all`] | exits of containers other than the training container |
//! | [`respond`] | combines the failures of one domain into a response |
//! | [`unreported`] | restarts by the kubelet that no agent reported |
//! | [`seen`] | restart counts at the time of an order |
//! | [`incident`] | opens, extends and supersedes incidents |
//! | [`requested`] | restarts on request, members that move to other nodes |
//! | [`refund`] | refunds of unjustified charges |
//! | [`resize`] | restarts because the set of running members changes |
//! | [`progress`], [`late`] | progress of an open incident; members that do not arrive |
//! | [`scope`], [`members`] | a domain with its gang; current state of its members |

pub(crate) mod detect;
pub(crate) mod incident;
pub(crate) mod late;
pub(crate) mod members;
pub(crate) mod others;
pub(crate) mod policy;
pub(crate) mod progress;
pub(crate) mod refund;
pub(crate) mod requested;
pub(crate) mod resize;
pub(crate) mod respond;
pub(crate) mod restart_all;
pub(crate) mod scope;
pub(crate) mod seen;
pub(crate) mod unreported;

//! Failures of members: noticing them, asking the policy, and restarting the domain.
//!
//! | module | content |
//! |---|---|
//! | [`detect`] | what has happened to a member's pod |
//! | [`policy`] | what the failure policy makes of one failure |
//! | [`others`], [`restart_all`] | ends of containers beside the training container |
//! | [`respond`] | what the failures of one domain call for together |
//! | [`unreported`] | restarts that the kubelet made and no agent reported |
//! | [`seen`] | restarts that had been seen when an order was decided |
//! | [`incident`] | opening, joining and superseding incidents |
//! | [`requested`] | restarts that a user asks for, members that go elsewhere |
//! | [`refund`] | charges that turn out to be wrong |
//! | [`resize`] | restarts because other members run together |
//! | [`progress`], [`late`] | moving an open incident on; members that do not come back |
//! | [`scope`], [`members`] | a domain with its gang; its members as they stand |

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

//! What a gang waits for before it is placed: something is missing that neither free capacity nor
//! preemption provides. Until then it takes nothing, evicts nobody and keeps nobody waiting.

use lockstep_api::condition::reasons;
use lockstep_model::quota::QuotaExcess;
use lockstep_model::volumes::MissingVolume;

/// What a gang waits for before it is placed.
#[derive(Clone, Debug, PartialEq)]
pub enum Hold {
    /// A claim for a volume, a volume or a storage class.
    Volume(MissingVolume),
    /// A quota of its namespace.
    Quota(QuotaExcess),
}

impl Hold {
    /// The reason of its condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Volume(_) => reasons::VOLUME_MISSING,
            Self::Quota(_) => reasons::QUOTA_EXCEEDED,
        }
    }
}

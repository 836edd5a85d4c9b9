//! Reasons to hold a gang: neither free capacity nor preemption helps. A held gang takes no
//! capacity, evicts no pod and blocks no gang.

use lockstep_api::condition::reasons;
use lockstep_model::Misfit;
use lockstep_model::quota::QuotaExcess;
use lockstep_model::volumes::MissingVolume;

#[derive(Clone, Debug, PartialEq)]
pub enum Hold {
    Volume(MissingVolume),
    Quota(QuotaExcess),
    /// The cluster could not hold the gang even without other work.
    Misfit(Misfit),
}

impl Hold {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Volume(_) => reasons::VOLUME_MISSING,
            Self::Quota(_) => reasons::QUOTA_EXCEEDED,
            Self::Misfit(misfit) => misfit.reason(),
        }
    }
}

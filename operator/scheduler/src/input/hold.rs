use chrono::{DateTime, Utc};
use lockstep_api::condition::reasons;
use lockstep_model::Misfit;
use lockstep_model::quota::QuotaExcess;
use lockstep_model::volumes::MissingVolume;

/// Whether a gang may have or get capacity.
#[derive(Clone, Debug, PartialEq)]
pub enum GangPhase {
    /// Ended, or being deleted. Its pods are deleted, and no capacity is kept.
    Finished,
    /// Its workload requests no capacity now.
    Held(Hold),
    /// Requests capacity, or has it.
    Active,
}

/// Reasons to hold a gang: its workload does not request capacity, or neither free capacity nor
/// preemption helps. A held gang takes no capacity, evicts no pod and blocks no gang.
#[derive(Clone, Debug, PartialEq)]
pub enum Hold {
    Suspended,
    /// Kueue has not admitted its workload.
    NotAdmitted,
    BackingOff {
        until: DateTime<Utc>,
    },
    /// A group in `dependsOn` is not ready.
    Dependency,
    Volume(MissingVolume),
    Quota(QuotaExcess),
    /// The cluster could not hold the gang even without other work.
    Misfit(Misfit),
}

impl Hold {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Suspended => reasons::SUSPENDED,
            Self::NotAdmitted => reasons::WAITING_FOR_QUOTA,
            Self::BackingOff { .. } => reasons::BACKING_OFF,
            Self::Dependency => reasons::WAITING_FOR_DEPENDENCY,
            Self::Volume(_) => reasons::VOLUME_MISSING,
            Self::Quota(_) => reasons::QUOTA_EXCEEDED,
            Self::Misfit(misfit) => misfit.reason(),
        }
    }
}

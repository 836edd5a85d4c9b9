//! Why a gang waits, as data.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::ids::GangKey;
use lockstep_api::scheduling::Refusal;
use lockstep_engine::Infeasible;
use lockstep_model::Unmet;
use lockstep_model::quantity::InvalidQuantity;
use lockstep_model::volumes::MissingVolume;

use crate::hold::Hold;
use crate::input::GangInput;
use crate::pace::LimitReached;
use crate::size::TooLarge;

/// Why a gang waits.
#[derive(Clone, Debug, PartialEq)]
pub enum Pending {
    /// A quantity in a pod template cannot be read.
    InvalidTemplate(InvalidQuantity),
    /// No node offers a resource, or has the topology label.
    Unmet(Unmet),
    /// There is not enough capacity.
    Capacity(Infeasible),
    /// There is not enough capacity, and no set of victims makes it.
    NoVictims {
        /// What is missing with everything evicted that may be.
        short: Infeasible,
        /// When work may be evicted that is still within its guaranteed run time.
        until: Option<DateTime<Utc>>,
        /// Pods of lower priority that the rules put out of reach, where their eviction would make
        /// enough capacity; else 0.
        out_of_reach: usize,
        /// Pods of lower priority that disruption budgets keep, where their eviction would make
        /// enough capacity; else 0.
        guarded: usize,
    },
    /// A search ended before it was known whether all pods fit together: nobody is preempted.
    Unknown {
        /// Steps that the search took.
        steps: u64,
        /// When it is searched again for longer.
        next_try: DateTime<Utc>,
    },
    /// There is not enough capacity, and no work may be preempted.
    NoPreemption {
        /// What is missing.
        short: Infeasible,
        /// Why no work is preempted.
        why: NoPreemption,
    },
    /// Something is missing that no node can offer: it is not placed before that is there.
    Held(Hold),
    /// kube-scheduler refused the last placements for another reason than capacity.
    BackingOff {
        /// The refusal.
        refusal: Box<Refusal>,
        /// When the gang is placed again.
        next_try: DateTime<Utc>,
    },
    /// There is a placement, and it does not fit into one object.
    TooLarge(TooLarge),
    /// Pods that are terminating leave enough capacity.
    Terminations {
        /// What is missing until then.
        short: Infeasible,
    },
    /// It would fit on nodes whose kubelets have rejected its pods, and waits until they may be
    /// tried again.
    RejectingNodes {
        /// The first of them by name.
        node: String,
        /// How many others.
        others: usize,
        /// When all of them may be tried again.
        next_try: DateTime<Utc>,
    },
    /// It and others get each other's nodes. It gives up its own first.
    Exchange {
        /// The first gang that gets some of them.
        to: GangName,
    },
    /// It would fit if nothing were reserved for gangs ahead of it in the queue.
    Reserved {
        /// The first of them.
        gang: GangName,
        /// How many others.
        others: usize,
    },
}

/// Another gang, as messages name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangName {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name of the workload.
    pub workload: String,
    /// Key of the gang within the workload.
    pub key: GangKey,
}

impl GangName {
    pub(crate) fn of(gang: &GangInput) -> Self {
        Self {
            namespace: gang.key.namespace.clone(),
            workload: gang.workload.name.clone(),
            key: gang.gang.key.clone(),
        }
    }
}

/// Why no work is preempted for a gang, whatever its priority.
#[derive(Clone, Debug, PartialEq)]
pub enum NoPreemption {
    /// The configuration turns all evictions off.
    Disabled,
    /// A claim for a volume, a volume or a storage class is missing.
    Missing(MissingVolume),
    /// kube-scheduler asks something of the node for its pods that is not known here.
    NotModelled(String),
    /// kube-scheduler refuses its pods for another reason than capacity.
    Refused(Box<Refusal>),
    /// The gang did not run after the last preemption.
    Failed {
        /// Failed preemptions in a row.
        failures: i32,
        /// When work may be preempted for it again.
        next_try: DateTime<Utc>,
    },
    /// It is not known what the API server makes of its pods.
    NotAdmitted(String),
    /// The limit of evictions is reached.
    Paced(LimitReached),
}

impl Pending {
    /// The reason of the condition of a gang that has no placement.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Held(hold) => hold.reason(),
            _ => reasons::UNSCHEDULABLE,
        }
    }

    /// One word, for labels and logs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::InvalidTemplate(_) => "invalid_template",
            Self::Unmet(_) => "unmet",
            Self::Capacity(_) => "capacity",
            Self::NoVictims { .. } => "no_victims",
            Self::Unknown { .. } => "unknown",
            Self::NoPreemption { .. } => "no_preemption",
            Self::Held(_) => "held",
            Self::BackingOff { .. } => "backing_off",
            Self::TooLarge(_) => "too_large",
            Self::Terminations { .. } => "terminations",
            Self::RejectingNodes { .. } => "rejecting_nodes",
            Self::Exchange { .. } => "exchange",
            Self::Reserved { .. } => "reserved",
        }
    }
}

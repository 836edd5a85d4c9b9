use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::scheduling::Refusal;
use lockstep_engine::{Infeasible, Names};
use lockstep_model::UnsuitableNodes;
use lockstep_model::common::quantity::InvalidQuantity;
use lockstep_model::volumes::MissingVolume;

use crate::input::hold::Hold;
use crate::pace::LimitReached;
use crate::size::TooLarge;

#[derive(Clone, Debug, PartialEq)]
pub enum Pending {
    /// A quantity in a pod template cannot be read.
    InvalidTemplate(InvalidQuantity),
    Capacity(Shortage),
    NoVictims {
        /// Shortage after evicting all permitted work.
        short: Shortage,
        /// End of the guaranteed run time of further victims, if any.
        until: Option<DateTime<Utc>>,
        /// Pods of lower priority that the rules protect, if their eviction would free enough; else
        /// 0.
        out_of_reach: usize,
        /// Pods of lower priority that disruption budgets protect, if their eviction would free
        /// enough; else 0.
        guarded: usize,
    },
    /// A search ended without an answer whether all pods fit together. The next search is longer,
    /// and may preempt.
    Undecided {
        steps: u64,
        next_try: DateTime<Utc>,
    },
    NoPreemption {
        short: Shortage,
        why: Box<NoPreemption>,
    },
    /// kube-scheduler places the gang, by its native group.
    KubeSchedulerPlaces {
        members: usize,
    },
    /// An object is missing, or the nodes are too few or too small for the gang.
    Held(Hold),
    /// kube-scheduler refused the last placements for a reason other than capacity.
    BackingOff {
        refusal: Box<Refusal>,
        next_try: DateTime<Utc>,
    },
    /// The placement exceeds the size of one object.
    TooLarge(TooLarge),
    Terminations {
        short: Shortage,
    },
    /// The gang fits only with nodes whose kubelets rejected its pods. It avoids them for now.
    RejectingNodes {
        node: String,
        others: usize,
        /// Time from which all of them are permitted again.
        next_try: DateTime<Utc>,
    },
    /// Gangs exchange nodes. This gang releases its nodes first.
    Exchange {
        /// Number of gangs that take some of the nodes.
        gangs: usize,
    },
    /// As many other gangs move as the settings permit.
    MoveLimit {
        moving: usize,
    },
    /// No gang moves for faults.
    ManyFaults(ManyFaults),
    /// The gang would fit without the reservations of gangs ahead in the queue.
    Reserved {
        gangs: usize,
    },
}

/// Faults of nodes with accelerators, if they are so many that no gang moves for faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManyFaults {
    /// Nodes with accelerators.
    pub nodes: usize,
    /// Of these, nodes that are Faulty now.
    pub faulty: usize,
    /// Nodes that gangs have left for faults in the last hour.
    pub left: usize,
    /// Most faults with which gangs move.
    pub limit: usize,
}

impl fmt::Display for ManyFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nodes,
            faulty,
            left,
            limit,
        } = self;
        write!(
            f,
            "no gang moves for faults while more than {limit} of {nodes} nodes with accelerators are Faulty, or \
             were left for faults in the last hour: {faulty} are Faulty, {left} were left"
        )
    }
}

/// Missing capacity, and the nodes that cannot hold such a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortage {
    pub reason: Infeasible,
    pub nodes: Option<Arc<UnsuitableNodes>>,
}

impl From<Infeasible> for Shortage {
    fn from(reason: Infeasible) -> Self {
        Self {
            reason,
            nodes: None,
        }
    }
}

impl Shortage {
    pub(crate) fn describe(&self, names: &dyn Names) -> String {
        let reason = self.reason.describe(names);
        match &self.nodes {
            Some(nodes) => format!("{reason}; {nodes}"),
            None => reason,
        }
    }
}

/// Why a gang may not preempt, whatever its priority.
#[derive(Clone, Debug, PartialEq)]
pub enum NoPreemption {
    Disabled,
    Missing(MissingVolume),
    /// Another controller holds the pods with this scheduling gate.
    Gated(String),
    /// The pods have a node constraint that only kube-scheduler evaluates.
    NotModelled(String),
    /// kube-scheduler refuses the pods for a reason other than capacity.
    Refused(Box<Refusal>),
    /// The gang did not run after its last preemption.
    Failed {
        /// Consecutive failed preemptions.
        failures: i32,
        next_try: DateTime<Utc>,
    },
    /// The result of admission for its pods is unknown.
    NotAdmitted(String),
    Paced(LimitReached),
    /// New nodes are preferred to preemption until then.
    PrefersNewNodes {
        until: DateTime<Utc>,
    },
}

impl Pending {
    /// True if the gang waits in the queue of this scheduler. Held gangs delay no gang.
    pub(crate) fn waits_in_queue(&self) -> bool {
        !matches!(self, Self::Held(_) | Self::KubeSchedulerPlaces { .. })
    }

    pub fn reason(&self) -> &'static str {
        match self {
            Self::Held(hold) => hold.reason(),
            Self::MoveLimit { .. } => reasons::MOVE_LIMIT_REACHED,
            Self::ManyFaults(_) => reasons::TOO_MANY_FAULTY_NODES,
            _ => reasons::UNSCHEDULABLE,
        }
    }

    pub(crate) fn shortage_mut(&mut self) -> Option<&mut Shortage> {
        match self {
            Self::Capacity(short)
            | Self::NoVictims { short, .. }
            | Self::NoPreemption { short, .. }
            | Self::Terminations { short } => Some(short),
            _ => None,
        }
    }

    /// True if only events change the reason, not time.
    pub(crate) fn lasts(&self) -> bool {
        let disabled = |why: &NoPreemption| matches!(why, NoPreemption::Disabled);
        match self {
            Self::Capacity(_)
            | Self::NoVictims { .. }
            | Self::Held(Hold::Misfit(_))
            | Self::KubeSchedulerPlaces { .. } => true,
            Self::NoPreemption { why, .. } => disabled(why),
            _ => false,
        }
    }

    pub fn as_str(&self) -> &'static str {
        match self {
            Self::InvalidTemplate(_) => "invalid_template",
            Self::Capacity(_) => "capacity",
            Self::NoVictims { .. } => "no_victims",
            Self::Undecided { .. } => "unknown",
            Self::NoPreemption { .. } => "no_preemption",
            Self::KubeSchedulerPlaces { .. } => "kube_scheduler_places",
            Self::Held(_) => "held",
            Self::BackingOff { .. } => "backing_off",
            Self::TooLarge(_) => "too_large",
            Self::Terminations { .. } => "terminations",
            Self::RejectingNodes { .. } => "rejecting_nodes",
            Self::Exchange { .. } => "exchange",
            Self::MoveLimit { .. } => "move_limit",
            Self::ManyFaults(_) => "many_faults",
            Self::Reserved { .. } => "reserved",
        }
    }
}

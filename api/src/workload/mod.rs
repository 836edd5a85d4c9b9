//! `TrainingWorkload`: spec, status and the CEL rules of its schema.

mod action;
mod checkpoint;
mod failure;
mod gang_move;
mod group;
mod incident;
mod quota;
mod rules;
mod schedule;
mod spec;
mod status;
#[cfg(test)]
mod tests;

pub use action::{ActionScope, FailureAction};
pub use checkpoint::{
    CheckpointOccasion, CheckpointOnRequest, CheckpointOutcome, CheckpointPolicy,
    CheckpointRequest, CheckpointSignal, ends_on_request,
};
pub use failure::{
    ExitCodeOperator, ExitCodes, FailedMember, FailureMatch, FailurePolicy, FailureRule, InPlace,
    PodConditionMatch, ProgressPolicy, RestartLimits, RestartScope, SharedMemoryPolicy,
    SupervisorMode, WithoutSupervisor,
};
pub use gang_move::{GangMove, MoveOutcome, NodeToLeave};
pub use group::{Dependency, DependencyCondition, Group};
pub use incident::{
    BarrierArrivals, Cause, CauseKind, HistoryEntry, Incident, IncidentStage, Phases,
    PodReplacement,
};
pub use quota::{KueuePodSet, KueueStatus};
pub use schedule::{
    Backend, DisruptionMode, GangScheduling, GangScope, OnTimeout, PreemptionPolicy, Scheduling,
    SchedulingPolicy, Topology, TopologyLevel, TopologyMode, TopologyScope,
};
pub use spec::{
    Coordinator, Network, SuccessOperator, SuccessPolicy, TrainingWorkload, TrainingWorkloadSpec,
    WorldScope,
};
pub use status::{
    Accounting, AppliedSpec, AvoidedNode, Backoff, DomainStatus, GangStatus, GroupStatus, Phase,
    PhaseChange, ProgressMetric, Restarts, SlowMember, TrainingProgress, TrainingWorkloadStatus,
};

//! `TrainingWorkload`: spec, status and the CEL rules of its schema.

mod failure;
mod group;
mod rules;
mod schedule;
mod spec;
mod status;
#[cfg(test)]
mod tests;

pub use failure::{
    ActionScope, ExitCodeOperator, ExitCodes, FailedMember, FailureAction, FailureMatch,
    FailurePolicy, FailureRule, InPlace, PodConditionMatch, ProgressPolicy, RestartLimits,
    RestartScope, SupervisorMode, WithoutSupervisor,
};
pub use group::{Dependency, DependencyCondition, Group};
pub use schedule::{
    DisruptionMode, GangScheduling, GangScope, OnTimeout, PreemptionPolicy, Scheduling,
    SchedulingPolicy, Topology, TopologyMode, TopologyScope,
};
pub use spec::{
    Coordinator, Network, SuccessOperator, SuccessPolicy, TrainingWorkload, TrainingWorkloadSpec,
    WorldScope,
};
pub use status::{
    Accounting, AppliedSpec, AvoidedNode, Backoff, Cause, CauseKind, DomainStatus, GangStatus,
    GroupStatus, HistoryEntry, Incident, IncidentStage, Phase, Phases, Restarts, TrainingProgress,
    TrainingWorkloadStatus,
};

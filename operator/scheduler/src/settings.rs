use std::num::NonZeroU32;
use std::time::Duration;

use lockstep_api::scheduling::AutoscalerMode;
use lockstep_api::workload::Backend;
use lockstep_model::Rules;

#[derive(Clone, Debug, PartialEq)]
pub struct SchedulerSettings {
    pub rules: Rules,
    pub preemption_enabled: bool,
    /// Backend of workloads whose spec names none.
    pub backend: Backend,
    /// Longest wait for checkpoints of victims before their eviction.
    pub checkpoint_wait: Duration,
    /// Most evictions per minute. `None`: no limit.
    pub max_evictions_per_minute: Option<NonZeroU32>,
    /// How long kube-scheduler may refuse a pinned pod before its gang is placed elsewhere.
    pub refused_after: Duration,
    /// How long a gang avoids a node that refused one of its pods.
    pub avoid_refused: Duration,
    /// How long budgets may block the eviction of a foreign pod before its deletion. `None`:
    /// forever. KEP-5710 respects budgets on a best-effort basis.
    pub delete_after: Option<Duration>,
    /// How long victims may take to terminate before the preemption is withdrawn. Counts from the
    /// last eviction request, or from the end of the last grace period if later.
    pub intent_deadline: Duration,
    /// How long a gang waits for its next pod to be bound or refused after victims left its nodes,
    /// before the preemption is withdrawn. Longer than the volume timeout of kube-scheduler
    /// (`bindTimeoutSeconds`, 10 min).
    pub binding_deadline: Duration,
    /// Time until a refused request is repeated.
    pub retry: Duration,
    /// Most victim searches per cycle. The next cycle continues.
    pub searches_per_cycle: usize,
    /// Shortest time between two updates of the message about missing capacity.
    pub message_interval: Duration,
    /// How long a gang runs without an incident before it grows into free capacity.
    pub grow_after: Duration,
    /// True if kube-scheduler keeps nominations by other components (KEP-5278, Kubernetes 1.34).
    /// Otherwise a preemptor's pods stay gated until its victims are gone.
    pub keeps_nominations: bool,
    /// Most gangs that move away from nodes with signals at once.
    pub concurrent_moves: usize,
    /// Nodes with a deadline nearer than this are the last choice.
    pub move_horizon: Duration,
    /// How a node autoscaler learns which nodes waiting gangs lack.
    pub autoscaler: AutoscalerMode,
    /// For this time a gang that lacks nodes waits for new nodes and does not preempt.
    pub scale_up_before_preemption: Duration,
    /// Changes within this time share one cycle.
    pub debounce: Duration,
    /// Longest debounce, for slow cycles without a result.
    pub gather_at_most: Duration,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            preemption_enabled: true,
            backend: Backend::Lockstep,
            checkpoint_wait: Duration::from_mins(2),
            max_evictions_per_minute: None,
            refused_after: Duration::from_secs(5),
            avoid_refused: Duration::from_mins(10),
            delete_after: None,
            intent_deadline: Duration::from_mins(5),
            binding_deadline: Duration::from_mins(15),
            retry: Duration::from_secs(1),
            searches_per_cycle: 4,
            message_interval: Duration::from_secs(5),
            grow_after: Duration::from_mins(10),
            keeps_nominations: true,
            concurrent_moves: 2,
            move_horizon: Duration::from_hours(24),
            autoscaler: AutoscalerMode::Off,
            scale_up_before_preemption: Duration::ZERO,
            debounce: Duration::from_millis(20),
            gather_at_most: Duration::from_millis(500),
        }
    }
}

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Container;
use lockstep_api::names::ACCELERATORS;
use lockstep_api::workload::Backend;

/// Runtime classes of the NVIDIA GPU operator, with runtime `runc`.
const NVIDIA: [&str; 3] = ["nvidia", "nvidia-cdi", "nvidia-legacy"];

/// Settings of the decisions. The defaults are those of the shipped configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifecycleSettings {
    /// Delay of the second consecutive counted incident; doubles. The first has no delay.
    pub incident_backoff: TimeDelta,
    /// Longest wait between counted incidents.
    pub incident_backoff_max: TimeDelta,
    /// After this time without an incident, back-off and in-place attempts reset.
    pub healthy_reset: TimeDelta,
    /// Wait after the first placement that ended before all members ran; doubles.
    pub placement_backoff: TimeDelta,
    pub placement_backoff_max: TimeDelta,
    /// How long a gang avoids a node that did not start its pod in time.
    pub avoid: TimeDelta,
    /// Pause before a rejected request is retried. Also how long a gang avoids a node whose kubelet
    /// rejected its pod.
    pub retry: TimeDelta,
    /// How long a pass waits for the agent's report if pod status shows a masked exit code.
    pub report_grace: TimeDelta,
    /// How long an irreversible response to an apparent kill waits for pod status, which can show
    /// an eviction or node shutdown.
    pub status_grace: TimeDelta,
    /// How long after its grace period a pod is deleted by force, if its node answers. Exceeds
    /// `node-monitor-grace-period` (50 s), after which a silent node becomes NotReady.
    pub overdue: TimeDelta,
    /// Duration of a restart with new pods. Pods are replaced if the kubelet's back-off is longer.
    pub recreate_takes: TimeDelta,
    /// Restarts with new pods, after all in-place attempts, before a gang releases its placement.
    pub recreate_tries: i32,
    /// How long an elastic gang runs without incident before it grows: `scheduler.growAfter`.
    pub grow_after: TimeDelta,
    pub accelerators: Vec<String>,
    /// Backend of workloads whose spec names none.
    pub backend: Backend,
    /// `None`: no pod gets a supervisor.
    pub supervisor_image: Option<String>,
    /// Names of `RuntimeClass` objects whose pods share the node's sockets, so that a supervisor is
    /// possible.
    pub supervisor_runtime_classes: Vec<String>,
    /// Whether Kueue manages workloads with a queue.
    pub kueue: bool,
    /// How long before a deadline a move is due, at least.
    pub lead_time: TimeDelta,
    /// A move leaves all nodes whose deadline is nearer than this.
    pub move_horizon: TimeDelta,
    /// True if members get the marks by which node autoscalers leave their nodes alone.
    pub protect_members: bool,
}

impl Default for LifecycleSettings {
    fn default() -> Self {
        Self {
            incident_backoff: TimeDelta::seconds(10),
            incident_backoff_max: TimeDelta::minutes(5),
            healthy_reset: TimeDelta::minutes(10),
            placement_backoff: TimeDelta::seconds(5),
            placement_backoff_max: TimeDelta::minutes(5),
            avoid: TimeDelta::minutes(5),
            retry: TimeDelta::seconds(30),
            report_grace: TimeDelta::seconds(5),
            status_grace: TimeDelta::seconds(60),
            grow_after: TimeDelta::minutes(10),
            overdue: TimeDelta::seconds(90),
            recreate_takes: TimeDelta::seconds(30),
            recreate_tries: 2,
            accelerators: ACCELERATORS.map(str::to_owned).to_vec(),
            backend: Backend::Lockstep,
            supervisor_image: None,
            supervisor_runtime_classes: NVIDIA.map(str::to_owned).to_vec(),
            kueue: false,
            lead_time: TimeDelta::minutes(10),
            move_horizon: TimeDelta::hours(24),
            protect_members: false,
        }
    }
}

impl LifecycleSettings {
    /// Sum of its limits.
    pub(crate) fn accelerators_of(&self, container: &Container) -> i64 {
        let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
        let Some(limits) = limits else { return 0 };
        let of = |name| limits.get(name)?.0.parse::<i64>().ok();
        let amounts = self.accelerators.iter().filter_map(of);
        amounts.fold(0, i64::saturating_add)
    }
}

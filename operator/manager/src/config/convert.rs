//! Converts the configuration to the settings of each component.

use std::time::Duration;

use chrono::TimeDelta;
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_lifecycle::LifecycleSettings;
use lockstep_lifecycle::provisioning::ProvisioningSettings;
use lockstep_scheduler::SchedulerSettings;
use lockstep_scheduler::config::time;

use super::{Config, Span};
use crate::api::clients::Deadlines;
use crate::index::AgentSelector;
use crate::lease::Timing;
use crate::queue::RetryBackoff;
use crate::workload::Limits;

impl Config {
    /// Pods in the operator's own namespaces are never evicted.
    pub fn scheduler_settings(&self, own: [&str; 2]) -> SchedulerSettings {
        let mut settings = SchedulerSettings::from(&self.scheduler);
        settings.backend = self.scheduling.backend;
        settings.concurrent_moves = self.node_health.concurrent_moves;
        settings.move_horizon = time(self.node_health.move_horizon);
        settings.autoscaler = self.autoscaler.mode;
        settings.scale_up_before_preemption = time(self.autoscaler.scale_up_before_preemption);
        settings.rules.victims.evict_admitted = self.kueue.evict_admitted;
        let excluded = &mut settings.rules.victims.excluded_namespaces;
        excluded.extend(own.map(str::to_owned));
        settings
    }

    pub fn timing(&self) -> Timing {
        let e = &self.leader_election;
        Timing {
            lease: time(e.lease_duration),
            renew: time(e.renew_deadline),
            retry: time(e.retry_period),
        }
    }

    pub fn deadlines(&self) -> Deadlines {
        Deadlines {
            read: time(self.client.read_timeout),
            write: time(self.client.write_timeout),
        }
    }

    /// Period of the resync; zero disables it.
    pub fn resync_period(&self) -> Duration {
        time(self.resync_period)
    }

    pub fn watch_backoff(&self) -> RetryBackoff {
        RetryBackoff {
            first: time(self.client.watch_backoff_min),
            max: time(self.client.watch_backoff_max),
        }
    }

    pub fn pass_backoff(&self) -> RetryBackoff {
        RetryBackoff {
            first: time(self.workloads.retry_min),
            max: time(self.workloads.retry_max),
        }
    }

    pub fn limits(&self) -> Limits {
        Limits {
            concurrency: self.workloads.concurrency,
            in_flight: self.workloads.requests_in_flight,
        }
    }

    pub fn agent_selector(&self, namespace: &str) -> AgentSelector {
        let own = self.agents.namespace.is_empty();
        AgentSelector {
            namespace: if own {
                namespace.to_owned()
            } else {
                self.agents.namespace.clone()
            },
            label: (
                self.agents.label_key.clone(),
                self.agents.label_value.clone(),
            ),
        }
    }

    pub fn provisioning_settings(&self) -> ProvisioningSettings {
        let a = &self.autoscaler;
        ProvisioningSettings {
            mode: a.mode,
            namespace: a.namespace.clone(),
            max_pods: a.max_pods,
            class: a.provisioning_class.clone(),
            parameters: a.parameters.clone(),
        }
    }

    pub fn settings(&self) -> LifecycleSettings {
        let w = &self.workloads;
        LifecycleSettings {
            incident_backoff: delta(w.incident_backoff_min),
            incident_backoff_max: delta(w.incident_backoff_max),
            healthy_reset: delta(w.healthy_reset),
            placement_backoff: delta(w.placement_backoff_min),
            placement_backoff_max: delta(w.placement_backoff_max),
            avoid: delta(w.avoid_node),
            retry: delta(w.refusal_retry),
            report_grace: delta(w.report_grace),
            recreate_tries: w.recreate_tries,
            recreate_takes: delta(w.recreate_takes),
            grow_after: delta(self.scheduler.grow_after),
            lead_time: delta(self.node_health.lead_time),
            move_horizon: delta(self.node_health.move_horizon),
            accelerators: self.scheduler.accelerators.clone(),
            backend: self.scheduling.backend,
            kueue: self.kueue.enabled,
            supervisor_image: Some(self.supervisor.image.clone()).filter(|i| !i.is_empty()),
            supervisor_runtime_classes: self.supervisor.runtime_classes.clone(),
            protect_members: self.autoscaler.mode != AutoscalerMode::Off
                && self.autoscaler.protect_members,
            ..LifecycleSettings::default()
        }
    }
}

/// Converts a duration. Durations out of range become the maximum.
fn delta(span: Span) -> TimeDelta {
    TimeDelta::from_std(time(span)).unwrap_or(TimeDelta::MAX)
}

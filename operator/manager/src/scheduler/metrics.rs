//! Metrics of the scheduler.

use std::time::Duration;

use lockstep_api::scheduling::PodGroupStatus;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::metrics::seconds;
use lockstep_scheduler::SchedulingPlan;

/// What the scheduler decides.
#[derive(Clone, Debug)]
pub struct SchedulerMetrics {
    passes: Family<SchedulerPassLabels, Histogram>,
    placements: Counter,
    preemptions: Family<PreemptionLabels, Counter>,
    victims: Family<VictimLabels, Counter>,
    lost: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SchedulerPassLabels {
    kind: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PreemptionLabels {
    proven: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VictimLabels {
    kind: &'static str,
}

impl Default for SchedulerMetrics {
    fn default() -> Self {
        Self {
            passes: Family::new_with_constructor(seconds),
            placements: Counter::default(),
            preemptions: Family::default(),
            victims: Family::default(),
            lost: Counter::default(),
        }
    }
}

impl SchedulerMetrics {
    /// A pass has been decided in this time.
    pub fn decided(&self, plan: &SchedulingPlan, time: Duration) {
        let kind = match (plan.searches, plan.queued) {
            (0, 0) => "upkeep",
            (0, _) => "placement",
            _ => "preemption",
        };
        let result = if plan.steps.is_empty() {
            "nothing"
        } else {
            "changes"
        };
        self.passes
            .get_or_create(&SchedulerPassLabels { kind, result })
            .observe(time.as_secs_f64());
    }

    /// Counts what a written status has that the one before had not.
    pub fn wrote(&self, old: &PodGroupStatus, new: &PodGroupStatus) {
        let (had, has) = (old.placement.as_ref(), new.placement.as_ref());
        if has.is_some_and(|p| had.is_none_or(|h| h.id != p.id)) {
            self.placements.inc();
        }
        // An intent that goes on with fewer victims was counted with all of them.
        let Some(intent) = new.preemption.as_ref().filter(|_| old.preemption.is_none()) else {
            return;
        };
        let proven = if intent.proven { "true" } else { "false" };
        self.preemptions
            .get_or_create(&PreemptionLabels { proven })
            .inc();
        for victim in &intent.victims {
            let kind = if victim.kind == "PodGroup" {
                "podgroup"
            } else {
                "pod"
            };
            self.victims.get_or_create(&VictimLabels { kind }).inc();
        }
        self.lost
            .inc_by(u64::try_from(intent.cost).unwrap_or_default());
    }

    /// Metrics that are shown in the registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "lockstep_scheduler_pass_seconds",
            "Time that the scheduler takes to decide, by the most that a pass did and by whether anything came of it",
            metrics.passes.clone(),
        );
        registry.register(
            "lockstep_placements",
            "Placements decided, changed ones included",
            metrics.placements.clone(),
        );
        registry.register(
            "lockstep_preemption_intents",
            "Preemptions decided",
            metrics.preemptions.clone(),
        );
        registry.register(
            "lockstep_preemption_victims",
            "Victims of the preemptions decided",
            metrics.victims.clone(),
        );
        registry.register(
            "lockstep_preemption_lost_accelerator_seconds",
            "Work that the preemptions decided destroy",
            metrics.lost.clone(),
        );
        metrics
    }
}

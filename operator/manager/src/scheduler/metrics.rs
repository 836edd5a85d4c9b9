use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::scheduling::{PodGroupStatus, Preemption};
use lockstep_api::worded;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::metrics::{decisions, restarts, waits};
use lockstep_scheduler::{IdleAccelerators, SchedulingPlan};

#[derive(Clone, Debug)]
pub struct SchedulerMetrics {
    cycles: Family<SchedulerCycleLabels, Histogram>,
    placements: Counter,
    preemptions: Family<PreemptionLabels, Counter>,
    victims: Family<VictimLabels, Counter>,
    lost: Counter,
    waited: Family<WaitLabels, Histogram>,
    preempted_in: Histogram,
    withdrawn: Family<WithdrawnLabel, Counter>,
    many_faults: Gauge,
    idle: Family<IdleLabel, Gauge>,
    demanded: Histogram,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct IdleLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WaitLabels {
    priority_class: String,
    how: &'static str,
}

impl WaitLabels {
    fn new(priority_class: &str, how: &'static str) -> Self {
        Self {
            priority_class: priority_class.to_owned(),
            how,
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WithdrawnLabel {
    reason: &'static str,
}

worded! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Withdrawal {
        /// Victims did not terminate in time.
        Overdue = "overdue",
        /// The pods were neither bound nor refused in time.
        Unanswered = "unanswered",
        /// Other capacity became free.
        Moved = "moved",
        /// The gang or its victims changed or ended.
        Void = "void",
    }
}

/// `None` if the preemption continues or did not exist.
fn ended(old: &PodGroupStatus, new: &PodGroupStatus) -> Option<Result<(), Withdrawal>> {
    let intent = old.preemption.as_ref()?;
    let goes_on = |now: &Preemption| now.placement == intent.placement;
    if new.preemption.as_ref().is_some_and(goes_on) {
        return None;
    }
    let unanswered = |s: &PodGroupStatus| s.refusal.as_ref().is_some_and(|r| r.unanswered);
    let last = new.last_preemption.as_ref();
    let failed = last.is_some_and(|l| l.has_failed() && l.decided_at == intent.decided_at);
    Some(match &new.placement {
        Some(placement) if placement.id == intent.placement => Ok(()),
        _ if unanswered(new) && !unanswered(old) => Err(Withdrawal::Unanswered),
        _ if failed => Err(Withdrawal::Overdue),
        Some(_) => Err(Withdrawal::Moved),
        None => Err(Withdrawal::Void),
    })
}

const WAYS: [&str; 3] = ["free", "backfill", "preemption"];

fn got(old: &PodGroupStatus, new: &PodGroupStatus) -> Option<&'static str> {
    let placement = new.placement.as_ref()?;
    let waits_still = new.preemption.is_some();
    let had = old.placement.is_some() && old.preemption.is_none();
    if waits_still || had {
        return None;
    }
    Some(match ended(old, new) {
        Some(Ok(())) => "preemption",
        Some(Err(_)) | None if placement.backfill.is_some() => "backfill",
        Some(Err(_)) | None => "free",
    })
}

/// Kinds of cycles, by their most expensive work.
const KINDS: [&str; 3] = ["upkeep", "placement", "preemption"];
const RESULTS: [&str; 2] = ["changes", "nothing"];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SchedulerCycleLabels {
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
            cycles: Family::new_with_constructor(decisions),
            placements: Counter::default(),
            preemptions: Family::default(),
            victims: Family::default(),
            lost: Counter::default(),
            waited: Family::new_with_constructor(waits),
            preempted_in: restarts(),
            withdrawn: Family::default(),
            many_faults: Gauge::default(),
            idle: Family::default(),
            demanded: waits(),
        }
    }
}

impl SchedulerMetrics {
    pub fn decided(&self, plan: &SchedulingPlan, time: Duration) {
        let [upkeep, placement, preemption] = KINDS;
        let kind = match (plan.searches, plan.queued) {
            (0, 0) => upkeep,
            (0, _) => placement,
            _ => preemption,
        };
        let [changes, nothing] = RESULTS;
        let result = if plan.steps.is_empty() {
            nothing
        } else {
            changes
        };
        self.many_faults.set(i64::from(plan.many_faults));
        self.show_idle(&plan.idle);
        self.cycles
            .get_or_create(&SchedulerCycleLabels { kind, result })
            .observe(time.as_secs_f64());
    }

    fn show_idle(&self, idle: &IdleAccelerators) {
        for (reason, n) in idle.by_reason() {
            self.idle.get_or_create(&IdleLabel { reason }).set(n);
        }
    }

    pub fn wrote(
        &self,
        priority_class: Option<&str>,
        old: &PodGroupStatus,
        new: &PodGroupStatus,
        now: DateTime<Utc>,
    ) {
        self.decided_on(old, new);
        let class = priority_class.unwrap_or_default();
        // All series are created with the first gang, so that the first wait shows as an increase.
        for how in WAYS {
            drop(self.waited.get_or_create(&WaitLabels::new(class, how)));
        }
        let queued = old.queued_at.or(new.queued_at);
        if let (Some(how), Some(queued)) = (got(old, new), queued) {
            let length = seconds(now - queued);
            let labels = WaitLabels::new(class, how);
            self.waited.get_or_create(&labels).observe(length);
        }
        let placed = new.preemption.is_none() && new.placement.is_some();
        if let Some(demand) = old.demand.as_ref()
            && placed
            && old.placement.is_none()
        {
            self.demanded.observe(seconds(now - demand.requested_at));
        }
        match (ended(old, new), &old.preemption) {
            (Some(Ok(())), Some(intent)) => {
                self.preempted_in.observe(seconds(now - intent.decided_at));
            }
            (Some(Err(withdrawal)), _) => {
                let reason = withdrawal.as_str();
                self.withdrawn
                    .get_or_create(&WithdrawnLabel { reason })
                    .inc();
            }
            (Some(Ok(())) | None, _) => {}
        }
    }

    fn decided_on(&self, old: &PodGroupStatus, new: &PodGroupStatus) {
        let (had, has) = (old.placement.as_ref(), new.placement.as_ref());
        if has.is_some_and(|p| had.is_none_or(|h| h.id != p.id)) {
            self.placements.inc();
        }
        // A preemption that continues with fewer victims is already counted.
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
            .inc_by(u64::try_from(intent.lost_work).unwrap_or_default());
    }

    /// Known label values start at zero.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for kind in KINDS {
            for result in RESULTS {
                let labels = SchedulerCycleLabels { kind, result };
                drop(metrics.cycles.get_or_create(&labels));
            }
        }
        for proven in ["true", "false"] {
            drop(
                metrics
                    .preemptions
                    .get_or_create(&PreemptionLabels { proven }),
            );
        }
        for kind in ["podgroup", "pod"] {
            drop(metrics.victims.get_or_create(&VictimLabels { kind }));
        }
        for reason in Withdrawal::ALL.map(Withdrawal::as_str) {
            drop(metrics.withdrawn.get_or_create(&WithdrawnLabel { reason }));
        }
        metrics.show_idle(&IdleAccelerators::default());
        metrics.show_waits(registry);
        metrics.show_decisions(registry);
        metrics
    }

    fn show_waits(&self, registry: &mut Registry) {
        registry.register(
            "lockstep_queue_wait_seconds",
            "From queueing until the gang has its nodes, by how: free capacity, backfill of nodes reserved for other gangs, preemption (until its members are bound)",
            self.waited.clone(),
        );
        registry.register(
            "lockstep_node_demand_seconds",
            "From the first request for nodes by a node autoscaler until the placement of the gang",
            self.demanded.clone(),
        );
        registry.register(
            "lockstep_preemption_seconds",
            "From the decision to preempt until all members of the gang are bound",
            self.preempted_in.clone(),
        );
        registry.register(
            "lockstep_preemption_intents_withdrawn",
            "Preemptions withdrawn by reason: overdue (victims did not terminate in time), unanswered (no scheduler bound or refused the pods in time), moved (other capacity became free), void (the gang or its victims changed)",
            self.withdrawn.clone(),
        );
    }

    fn show_decisions(&self, registry: &mut Registry) {
        registry.register(
            "lockstep_scheduler_cycle_seconds",
            "Duration of a scheduling cycle, by kind: upkeep (no gang requested capacity), placement, preemption (the cycle searched for victims); by result: changes, nothing",
            self.cycles.clone(),
        );
        registry.register(
            "lockstep_accelerators_idle",
            "Accelerators that no pod holds, by reason: reserved (for members without pods, moves and waiting gangs), fragmented (free in pieces too small for the gangs that wait for them), noDemand (free, and no gang waits for them), unusable (on cordoned, unready and faulty nodes)",
            self.idle.clone(),
        );
        registry.register(
            "lockstep_moves_stopped_by_faults",
            "1 while so many nodes are Faulty, or were left for faults in the last hour, that no gang moves for faults; otherwise 0",
            self.many_faults.clone(),
        );
        registry.register(
            "lockstep_placements",
            "Placements decided, changed ones included",
            self.placements.clone(),
        );
        registry.register(
            "lockstep_preemption_intents",
            "Preemptions decided, by whether the victims were proven to be the cheapest",
            self.preemptions.clone(),
        );
        registry.register(
            "lockstep_preemption_victims",
            "Victims of decided preemptions by kind: podgroup, pod",
            self.victims.clone(),
        );
        registry.register(
            "lockstep_preemption_lost_accelerator_seconds",
            "Accelerator-seconds of work since the last checkpoints that decided preemptions destroy, without restarts",
            self.lost.clone(),
        );
    }
}

fn seconds(time: TimeDelta) -> f64 {
    time.to_std().unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_api::scheduling::{LastPreemption, NodeDemand, Placement, Refusal};

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_795_000_000 + seconds, 0).unwrap()
    }

    fn placed(id: &str) -> PodGroupStatus {
        PodGroupStatus {
            placement: Some(Placement {
                id: id.into(),
                ..Placement::default()
            }),
            queued_at: Some(at(0)),
            ..PodGroupStatus::default()
        }
    }

    fn intends(placement: &str) -> PodGroupStatus {
        PodGroupStatus {
            preemption: Some(Preemption {
                placement: placement.into(),
                decided_at: at(10),
                ..Preemption::default()
            }),
            ..placed(placement)
        }
    }

    fn waiting() -> PodGroupStatus {
        PodGroupStatus {
            queued_at: Some(at(0)),
            ..PodGroupStatus::default()
        }
    }

    #[test]
    fn a_gang_has_waited_until_it_has_nodes_and_a_preemptor_until_its_victims_have_left() {
        let queued = waiting();
        let backfills = {
            let mut status = placed("p");
            let placement = status.placement.as_mut().unwrap();
            placement.backfill = Some(lockstep_api::scheduling::Backfill::default());
            status
        };
        for (old, new, how) in [
            (&queued, &placed("p"), Some("free")),
            (&queued, &backfills, Some("backfill")),
            (&queued, &intends("p"), None),
            (&intends("p"), &intends("p"), None),
            (&intends("p"), &placed("p"), Some("preemption")),
            (&intends("p"), &placed("q"), Some("free")),
            (&intends("p"), &queued, None),
            (&placed("p"), &placed("q"), None),
            (&placed("p"), &queued, None),
        ] {
            assert_eq!(got(old, new), how, "{old:?} {new:?}");
        }
    }

    #[test]
    fn an_intent_ends_with_room_or_is_withdrawn_for_a_reason() {
        let failed = PodGroupStatus {
            last_preemption: Some(LastPreemption {
                decided_at: at(10),
                failed_at: Some(at(20)),
                ..LastPreemption::default()
            }),
            ..waiting()
        };
        let unanswered = PodGroupStatus {
            refusal: Some(Refusal {
                unanswered: true,
                ..Refusal::default()
            }),
            ..failed.clone()
        };
        for (new, end) in [
            (intends("p"), None),
            (placed("p"), Some(Ok(()))),
            (placed("q"), Some(Err(Withdrawal::Moved))),
            (waiting(), Some(Err(Withdrawal::Void))),
            (failed, Some(Err(Withdrawal::Overdue))),
            (unanswered, Some(Err(Withdrawal::Unanswered))),
        ] {
            assert_eq!(ended(&intends("p"), &new), end, "{new:?}");
        }
        assert_eq!(ended(&waiting(), &placed("p")), None);
    }

    #[test]
    fn waits_and_preemptions_are_shown_with_their_length() {
        let mut registry = Registry::default();
        let metrics = SchedulerMetrics::register(&mut registry);
        metrics.wrote(Some("urgent"), &waiting(), &intends("p"), at(10));
        metrics.wrote(Some("urgent"), &intends("p"), &placed("p"), at(25));
        metrics.wrote(None, &waiting(), &placed("q"), at(40));
        let demanded = PodGroupStatus {
            demand: Some(NodeDemand {
                requested_at: at(5),
                since: at(30),
                ..NodeDemand::default()
            }),
            ..waiting()
        };
        metrics.wrote(None, &demanded, &placed("r"), at(95));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "lockstep_queue_wait_seconds_sum{priority_class=\"urgent\",how=\"preemption\"} 25",
            "lockstep_queue_wait_seconds_sum{priority_class=\"\",how=\"free\"} 135",
            "lockstep_preemption_seconds_sum 15",
            "lockstep_node_demand_seconds_sum 90",
            "lockstep_preemption_intents_withdrawn_total{reason=\"void\"} 0",
            "lockstep_placements_total 3",
            "lockstep_accelerators_idle{reason=\"noDemand\"} 0",
            "lockstep_queue_wait_seconds_count{priority_class=\"urgent\",how=\"backfill\"} 0",
            "lockstep_scheduler_cycle_seconds_count{kind=\"preemption\",result=\"changes\"} 0",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}

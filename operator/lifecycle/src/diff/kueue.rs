//! Actions for the Kueue Workload: quota is requested, held while pods use it, and returned.

use chrono::SubsecRound;
use lockstep_api::condition::{Condition, ConditionStatus, find, upsert};
use lockstep_api::kueue::{
    FINALIZER, KueueWorkload, KueueWorkloadSpec, MOST_POD_SETS, ReclaimablePods, kueue_conditions,
};

use super::rejected::is_recently_rejected;
use crate::facts::Facts;
use crate::kueue::{Unadmitted, requests_same};
use crate::ledger::{Ledger, Outcome};
use crate::objects::kueue::{name, workload};
use crate::plan::{Action, Object, Surplus};
use crate::view::{Held, KueueAccess, Target};
use crate::wake::Wake;

/// Reasons of evictions after which Kueue queues the workload at once. After others it decides when.
const REQUEUED_AT_ONCE: [&str; 2] = ["Preempted", "NodeFailures"];

pub(super) fn actions(facts: &Facts<'_>, ledger: &Ledger, out: &mut Vec<Action>, wake: &mut Wake) {
    let kueue = facts.view.kueue();
    if !facts.view.settings().kueue || !matches!(kueue.access, KueueAccess::Served(_)) {
        return;
    }
    let target = Target::Object(Surplus::KueueWorkload.kind(), name(facts.view));
    if is_recently_rejected(facts, &target, wake) {
        return;
    }
    let wants = ledger.ended.is_none() && !facts.spec().suspend;
    let queue = ledger.kueue.as_ref().filter(|_| wants).map(|k| &*k.queue);
    out.extend(match &kueue.workload {
        Some(held) => change(facts, ledger, held, queue),
        None => queue
            .and_then(|queue| workload(facts.view, queue))
            .filter(|d| (1..=MOST_POD_SETS).contains(&d.spec.pod_sets.len()))
            .map(|desired| Action::Create(Object::KueueWorkload(Box::new(desired)))),
    });
}

/// The next step for the existing Kueue Workload. `queue`: where it should request quota, if at all.
fn change(
    facts: &Facts<'_>,
    ledger: &Ledger,
    held: &Held<KueueWorkload>,
    queue: Option<&str>,
) -> Option<Action> {
    let (content, status) = (&held.content, &held.content.status);
    // Without quota from Kueue, pods use none of it.
    let in_use = ledger.kueue.is_some() && facts.uses_quota();
    let mut next = Next {
        facts,
        workload: content.clone(),
    };
    let is_finished = status.is(kueue_conditions::FINISHED);
    if let Some(end) = ledger.ended.as_ref().filter(|_| !is_finished) {
        let reason = match end.outcome {
            Outcome::Complete => "Succeeded",
            Outcome::Failed => "Failed",
        };
        next.set(kueue_conditions::FINISHED, true, reason, &end.message);
        return next.update(held).filter(|_| !in_use);
    }
    if is_finished || content.metadata.deletion_timestamp.is_some() {
        let finalizers = next.workload.metadata.finalizers.iter_mut();
        finalizers.for_each(|all| all.retain(|f| f != FINALIZER));
        return next.update(held).filter(|_| !in_use);
    }
    let surplus = || {
        (!in_use).then(|| Action::DeleteSurplus {
            surplus: Surplus::KueueWorkload,
            name: name(facts.view),
            uid: held.uid.clone(),
        })
    };
    let Some(queue) = queue else {
        return surplus();
    };
    let quota = ledger.kueue.as_ref();
    if quota.is_some_and(|k| k.admitted && held.uid == *k.uid) {
        next.run(ledger);
        return next.update(held);
    }
    let Some(desired) = workload(facts.view, queue) else {
        return surplus();
    };
    let reserved = status.is(kueue_conditions::QUOTA_RESERVED);
    let is_current = requests_same(content, &desired.spec.queue_name, &desired.spec.pod_sets);
    if reserved && !is_current {
        return surplus();
    }
    let same_class = content.spec.priority == desired.spec.priority;
    if !reserved && (!is_current || !same_class) {
        next.workload.spec = KueueWorkloadSpec {
            active: content.spec.active,
            ..desired.spec
        };
    } else if let Err(Unadmitted::Conflict(why)) = facts.admission(queue) {
        next.set(kueue_conditions::FINISHED, true, "FailedToStart", &why);
    } else {
        next.stop(in_use);
    }
    next.update(held)
}

/// The next content of the Kueue Workload.
struct Next<'f> {
    facts: &'f Facts<'f>,
    workload: KueueWorkload,
}

impl Next<'_> {
    /// Sets a condition.
    fn set(&mut self, type_: &str, value: bool, reason: &str, message: &str) {
        let condition = Condition {
            type_: type_.to_owned(),
            status: value.into(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: self.facts.now.trunc_subsecs(0),
            observed_generation: self.workload.metadata.generation.unwrap_or_default(),
        };
        upsert(&mut self.workload.status.conditions, condition);
    }

    /// The condition of this type, if it is True.
    fn true_condition(&self, type_: &str) -> Option<Condition> {
        let condition = find(&self.workload.status.conditions, type_);
        condition
            .filter(|c| c.status == ConditionStatus::True)
            .cloned()
    }

    /// `None` if nothing changes.
    fn update(self, held: &Held<KueueWorkload>) -> Option<Action> {
        (self.workload != held.content).then(|| Action::Update {
            object: Object::KueueWorkload(Box::new(self.workload)),
            uid: held.uid.clone(),
            resource_version: held.resource_version.clone(),
        })
    }

    /// Members may have pods. Restarts in place are invisible.
    fn run(&mut self, ledger: &Ledger) {
        let facts = self.facts;
        let before = find(
            &self.workload.status.conditions,
            kueue_conditions::PODS_READY,
        );
        let was_ready = before.is_some_and(|c| c.status == ConditionStatus::True);
        let lost = before.is_some_and(|c| c.reason == "WaitForRecovery");
        let ready = all_run(facts, ledger);
        if ready && !was_ready {
            let reason = if lost { "Recovered" } else { "Started" };
            let message = "All pods reached readiness and the workload is running";
            self.set(kueue_conditions::PODS_READY, true, reason, message);
        } else if !ready && was_ready {
            let (reason, message) = (
                "WaitForRecovery",
                "The pods wait for nodes after they have run",
            );
            self.set(kueue_conditions::PODS_READY, false, reason, message);
        }
        let status = &mut self.workload.status;
        for group in &facts.spec().groups {
            let completed = ledger.completed.iter().filter(|m| m.group == group.name);
            let count = completed.count() as i32;
            if count > status.reclaimed(&group.name) {
                let (pods, name) = (&mut status.reclaimable_pods, group.name.clone());
                pods.retain(|pods| pods.name != name);
                pods.push(ReclaimablePods { name, count });
            }
        }
    }

    /// The workload is evicted or waits: the quota is returned once no pod uses it.
    fn stop(&mut self, in_use: bool) {
        let reserved = self.workload.status.is(kueue_conditions::QUOTA_RESERVED);
        let evicted = self.true_condition(kueue_conditions::EVICTED);
        if let Some(evicted) = evicted.filter(|_| reserved && !in_use) {
            self.return_quota(&evicted);
        }
        let status = &self.workload.status;
        if status.is(kueue_conditions::PODS_READY) && !status.is(kueue_conditions::ADMITTED) {
            let message = "Not all pods are ready or succeeded";
            self.set(kueue_conditions::PODS_READY, false, "WaitForStart", message);
        }
    }

    fn return_quota(&mut self, evicted: &Condition) {
        if let Some(admitted) = self.true_condition(kueue_conditions::ADMITTED) {
            let ran = self.facts.now - admitted.last_transition_time;
            let seconds = i32::try_from(ran.num_seconds().max(0)).unwrap_or(i32::MAX);
            let status = &mut self.workload.status;
            let before = status.accumulated_past_execution_time_seconds;
            let total = before.unwrap_or_default().saturating_add(seconds);
            status.accumulated_past_execution_time_seconds = Some(total);
            let message = "The workload has no reservation";
            self.set(kueue_conditions::ADMITTED, false, "NoReservation", message);
        }
        let (reason, message) = (&*evicted.reason, &*evicted.message);
        self.set(kueue_conditions::QUOTA_RESERVED, false, "Pending", message);
        let requeued = REQUEUED_AT_ONCE.contains(&reason);
        self.set(kueue_conditions::REQUEUED, requeued, reason, message);
        self.workload.status.admission = None;
    }
}

/// True if the members of every placed gang run, restart, or have succeeded.
fn all_run(facts: &Facts<'_>, ledger: &Ledger) -> bool {
    let membership = ledger.membership(facts.spec());
    facts.gangs.iter().all(|gang| {
        let mut domains = gang.domains.iter();
        ledger.is_done(gang)
            || facts.placement(ledger, &gang.key).is_some()
                && domains.all(|domain| {
                    let mut members = domain.members.iter();
                    ledger.domain_or_empty(&domain.key).under_way()
                        || members.all(|m| !membership.contains(m) || ledger.completed.contains(m))
                })
    })
}

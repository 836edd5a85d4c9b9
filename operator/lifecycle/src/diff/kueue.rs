//! Actions for the Kueue Workload: quota is requested, held while pods use it, and returned.

use chrono::SubsecRound;
use lockstep_api::condition::{Condition, ConditionStatus, find, upsert};
use lockstep_api::kueue::{
    FINALIZER, KueueWorkload, KueueWorkloadSpec, KueueWorkloadStatus, MOST_POD_SETS,
    ReclaimablePods, kueue_conditions,
};

use super::objects::{Wanted, ensure};
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
    let wants = ledger.ended.is_none() && !facts.spec().suspend;
    let queue = ledger.kueue.as_ref().filter(|_| wants).map(|k| &k.queue);
    let own = name(facts.view);
    let desired = queue.and_then(|queue| workload(facts.view, queue));
    for (name, held) in &kueue.workloads {
        let target = Target::Object(Surplus::KueueWorkload.kind(), name.clone());
        if is_recently_rejected(facts, &target, wake) {
            continue;
        }
        let current = desired.as_ref().filter(|_| *name == own);
        out.extend(existing(facts, ledger, name, held, current));
    }
    let possible = desired.filter(|d| (1..=MOST_POD_SETS).contains(&d.spec.pod_sets.len()));
    if let Some(desired) = possible.filter(|_| !kueue.workloads.contains_key(&own)) {
        let wanted = Wanted::<()> {
            object: Object::KueueWorkload(Box::new(desired)),
            present: None,
            same: false,
        };
        let _ = ensure(facts, wanted, out, wake);
    }
}

/// The next step for an existing Kueue Workload. `desired`: what it should request, if it is needed.
fn existing(
    facts: &Facts<'_>,
    ledger: &Ledger,
    name: &str,
    held: &Held<KueueWorkload>,
    desired: Option<&KueueWorkload>,
) -> Option<Action> {
    let content = &held.content;
    let status = &content.status;
    // Without quota from Kueue, pods use none of it.
    let in_use = ledger.kueue.is_some() && facts.uses_quota();
    let is_finished = status.is(kueue_conditions::FINISHED);
    if let Some(end) = ledger.ended.as_ref().filter(|_| !is_finished) {
        let reason = match end.outcome {
            Outcome::Complete => "Succeeded",
            Outcome::Failed => "Failed",
        };
        return (!in_use).then(|| finish(facts, name, held, reason, &end.message));
    }
    if is_finished || content.metadata.deletion_timestamp.is_some() {
        return release(name, held).filter(|_| !in_use);
    }
    let reserved = status.is(kueue_conditions::QUOTA_RESERVED);
    let quota = ledger
        .kueue
        .as_ref()
        .filter(|k| k.admitted && held.uid == *k.uid);
    let is_current = desired.is_some_and(|desired| {
        quota.is_some() || requests_same(content, &desired.spec.queue_name, &desired.spec.pod_sets)
    });
    let Some(desired) = desired.filter(|_| is_current || !reserved) else {
        return (!in_use).then(|| Action::DeleteSurplus {
            surplus: Surplus::KueueWorkload,
            name: name.to_owned(),
            uid: held.uid.clone(),
        });
    };
    let spec = KueueWorkloadSpec {
        active: content.spec.active,
        ..desired.spec.clone()
    };
    let same_class = content.spec.priority == spec.priority;
    if !reserved && (!is_current || !same_class) {
        return Some(Action::Update {
            object: Object::KueueWorkload(Box::new(KueueWorkload {
                spec,
                ..desired.clone()
            })),
            uid: held.uid.clone(),
            resource_version: held.resource_version.clone(),
        });
    }
    if let Err(Unadmitted::Conflict(why)) = facts.admission(&desired.spec.queue_name) {
        return Some(finish(facts, name, held, "FailedToStart", &why));
    }
    let new = match quota {
        Some(_) => running(facts, ledger, held),
        None => stopped(facts, held, in_use),
    };
    (new != *status).then(|| update(name, held, new))
}

fn finish(
    facts: &Facts<'_>,
    name: &str,
    held: &Held<KueueWorkload>,
    reason: &str,
    message: &str,
) -> Action {
    let mut status = held.content.status.clone();
    set(
        facts,
        held,
        &mut status,
        (kueue_conditions::FINISHED, true, reason, message),
    );
    update(name, held, status)
}

fn update(name: &str, held: &Held<KueueWorkload>, status: KueueWorkloadStatus) -> Action {
    Action::UpdateQuota {
        name: name.to_owned(),
        uid: held.uid.clone(),
        resource_version: held.resource_version.clone(),
        status: Box::new(status),
    }
}

/// `None` if it has no finalizer of the integration.
fn release(name: &str, held: &Held<KueueWorkload>) -> Option<Action> {
    let all = held.content.metadata.finalizers.as_deref()?;
    let others: Vec<String> = all.iter().filter(|f| *f != FINALIZER).cloned().collect();
    (others.len() < all.len()).then(|| Action::ReleaseQuota {
        name: name.to_owned(),
        uid: held.uid.clone(),
        resource_version: held.resource_version.clone(),
        finalizers: others,
    })
}

/// Status while members may have pods. Restarts in place are invisible.
fn running(facts: &Facts<'_>, ledger: &Ledger, held: &Held<KueueWorkload>) -> KueueWorkloadStatus {
    let mut status = held.content.status.clone();
    let before = find(&status.conditions, kueue_conditions::PODS_READY).cloned();
    let was_ready = before
        .as_ref()
        .is_some_and(|c| c.status == ConditionStatus::True);
    let ready = all_run(facts, ledger);
    if ready && !was_ready {
        let lost = before.is_some_and(|c| c.reason == "WaitForRecovery");
        let reason = if lost { "Recovered" } else { "Started" };
        let message = "All pods reached readiness and the workload is running";
        set(
            facts,
            held,
            &mut status,
            (kueue_conditions::PODS_READY, true, reason, message),
        );
    } else if !ready && was_ready {
        let message = "The pods wait for nodes after they have run";
        let value = (
            kueue_conditions::PODS_READY,
            false,
            "WaitForRecovery",
            message,
        );
        set(facts, held, &mut status, value);
    }
    for group in &facts.spec().groups {
        let completed = ledger.completed.iter().filter(|m| m.group == group.name);
        let count = completed.count() as i32;
        if count > status.reclaimed(&group.name) {
            status
                .reclaimable_pods
                .retain(|pods| pods.name != group.name);
            status.reclaimable_pods.push(ReclaimablePods {
                name: group.name.clone(),
                count,
            });
        }
    }
    status
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

/// Status of an evicted or waiting workload: the quota is returned once no pod uses it.
fn stopped(facts: &Facts<'_>, held: &Held<KueueWorkload>, in_use: bool) -> KueueWorkloadStatus {
    let mut status = held.content.status.clone();
    let evicted = find(&status.conditions, kueue_conditions::EVICTED).cloned();
    let evicted = evicted.filter(|c| c.status == ConditionStatus::True);
    let reserved = status.is(kueue_conditions::QUOTA_RESERVED);
    if let Some(evicted) = evicted.filter(|_| reserved && !in_use) {
        let requeued = REQUEUED_AT_ONCE.contains(&evicted.reason.as_str());
        let since = find(&status.conditions, kueue_conditions::ADMITTED).cloned();
        if let Some(admitted) = since.filter(|c| c.status == ConditionStatus::True) {
            let seconds = (facts.now - admitted.last_transition_time)
                .num_seconds()
                .max(0);
            let before = status
                .accumulated_past_execution_time_seconds
                .unwrap_or_default();
            let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
            let total = before.saturating_add(seconds);
            status.accumulated_past_execution_time_seconds = Some(total);
            let message = "The workload has no reservation";
            let value = (kueue_conditions::ADMITTED, false, "NoReservation", message);
            set(facts, held, &mut status, value);
        }
        let message = &evicted.message;
        let value = (
            kueue_conditions::QUOTA_RESERVED,
            false,
            "Pending",
            &**message,
        );
        set(facts, held, &mut status, value);
        let value = (
            kueue_conditions::REQUEUED,
            requeued,
            &*evicted.reason,
            &**message,
        );
        set(facts, held, &mut status, value);
        status.admission = None;
    }
    if status.is(kueue_conditions::PODS_READY) && !status.is(kueue_conditions::ADMITTED) {
        let message = "Not all pods are ready or succeeded";
        let value = (kueue_conditions::PODS_READY, false, "WaitForStart", message);
        set(facts, held, &mut status, value);
    }
    status
}

/// Sets a condition: type, status, reason, message.
fn set(
    facts: &Facts<'_>,
    held: &Held<KueueWorkload>,
    status: &mut KueueWorkloadStatus,
    (type_, value, reason, message): (&str, bool, &str, &str),
) {
    let condition = Condition {
        type_: type_.to_owned(),
        status: value.into(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: facts.now.trunc_subsecs(0),
        observed_generation: held.content.metadata.generation.unwrap_or_default(),
    };
    upsert(&mut status.conditions, condition);
}

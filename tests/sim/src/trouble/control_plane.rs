//! Faults of the API server and of the connection to it.

use chrono::TimeDelta;
use lockstep_api::names::labels;
use lockstep_manager::stepped::WatchedKind;
use serde_json::{Value, json};

use crate::SimCluster;
use crate::api::{Refused, Rule, Verb};
use crate::kueue::ALWAYS_WATCHED;
use crate::pods::add_foreign_gate;

fn kind(rng: &mut fastrand::Rng) -> WatchedKind {
    ALWAYS_WATCHED[rng.usize(..ALWAYS_WATCHED.len())]
}

pub(super) fn crash(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    c.crash_after(rng.usize(..5));
    let ahead = [0, 0, 120, -120][rng.usize(..4)];
    c.set_manager_clock(TimeDelta::seconds(ahead));
    true
}

pub(super) fn lost_answer(c: &mut SimCluster, _: &mut fastrand::Rng) -> bool {
    c.line().lost_answers = 1;
    true
}

pub(super) fn relist(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    c.store().relist(kind(rng));
    true
}

pub(super) fn lag(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let lag = TimeDelta::milliseconds(rng.i64(100..20_000));
    c.store().watches.delay(kind(rng), lag);
    true
}

pub(super) fn no_lag(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    c.store().watches.delay(kind(rng), TimeDelta::zero());
    true
}

/// One quota in every namespace.
pub(super) fn quota(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    c.store().admission.quota = Some(rng.usize(..8));
    true
}

pub(super) fn no_quota(c: &mut SimCluster, _: &mut fastrand::Rng) -> bool {
    c.store().admission.quota.take().is_some()
}

pub(super) fn webhook(c: &mut SimCluster, _: &mut fastrand::Rng) -> bool {
    let admission = &mut c.store().admission;
    admission.webhook = match admission.webhook.take() {
        Some(_) => None,
        None => Some(Box::new(|pod| {
            change(pod);
            Ok(())
        })),
    };
    true
}

/// A policy refuses new pods of one replica. Or it is removed.
pub(super) fn refuse_replica(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let replica = rng.u8(..3).to_string();
    let admission = &mut c.store().admission;
    admission.webhook = match admission.webhook.take() {
        Some(_) => None,
        None => Some(Box::new(move |pod| {
            let refused = pod["metadata"]["labels"][labels::REPLICA] == *replica;
            if refused {
                return Err(Refused::forbidden("a policy refuses this replica"));
            }
            Ok(())
        })),
    };
    true
}

/// Another controller adds its scheduling gate to new pods.
pub(super) fn gates(c: &mut SimCluster, _: &mut fastrand::Rng) -> bool {
    c.store().admission.webhook = Some(Box::new(|pod| {
        add_foreign_gate(pod);
        Ok(())
    }));
    true
}

/// It adds no gate any more, and removes its gates.
pub(super) fn gates_open(c: &mut SimCluster, _: &mut fastrand::Rng) -> bool {
    c.store().admission.webhook = None;
    c.open_foreign_gates()
}

/// Changes of pods as by service meshes and cloud providers.
fn change(pod: &mut Value) {
    let sidecar =
        json!({"name": "proxy", "image": "i", "resources": {"requests": {"cpu": "100m"}}});
    let toleration = json!({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"});
    pod["metadata"]["labels"]["mesh"] = json!("on");
    for (list, item) in [("containers", sidecar), ("tolerations", toleration)] {
        if pod["spec"][list].is_null() {
            pod["spec"][list] = json!([]);
        }
        if let Some(all) = pod["spec"][list].as_array_mut() {
            all.push(item);
        }
    }
}

pub(super) fn refusals(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let targets = [
        (WatchedKind::Pod, Verb::Create),
        (WatchedKind::Pod, Verb::Evict),
        (WatchedKind::PodGroup, Verb::Create),
        (WatchedKind::PodGroup, Verb::UpdateStatus),
        (WatchedKind::TrainingWorkload, Verb::UpdateStatus),
        (WatchedKind::RestartOrder, Verb::Create),
        (WatchedKind::RestartOrder, Verb::Update),
        (WatchedKind::Service, Verb::Create),
    ];
    let answers = [
        Refused::forbidden("a policy says no"),
        Refused::new(429, "TooManyRequests", "the server is busy"),
        Refused::new(500, "InternalError", "etcdserver: request timed out"),
        Refused::new(503, "ServiceUnavailable", "no endpoints for the webhook"),
    ];
    let (kind, verb) = targets[rng.usize(..targets.len())];
    c.store().admission.rules.push(Rule {
        kind,
        verb,
        name: None,
        answer: answers[rng.usize(..answers.len())].clone(),
    });
    true
}

pub(super) fn no_refusals(c: &mut SimCluster, _: &mut fastrand::Rng) -> bool {
    let rules = std::mem::take(&mut c.store().admission.rules);
    !rules.is_empty()
}

pub(super) fn pause(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    c.later([1, 10, 40, 200, 700][rng.usize(..5)]);
    true
}

/// The story lets time pass.
pub(super) fn minutes(_: &mut SimCluster, _: &mut fastrand::Rng) -> bool {
    true
}

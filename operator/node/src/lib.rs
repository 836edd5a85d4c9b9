//! Decisions of a node's agent: which containers to stop, what to persist and what to report.
//!
//! A training container is *released* for an attempt when the agent first sees it running without
//! an older one. An order stops exactly the containers released for earlier attempts. In two cases,
//! a container restarted by its own rule is released for the next attempt instead of stopped: it is
//! newer than the container that the manager saw, or no container ran when the order arrived. No
//! clocks are compared.
//!
//! A supervised container is never stopped. Its supervisor is paused, and released when all members
//! are at the barrier ([`supervised`]).

mod arrivals;
mod checkpoints;
mod companions;
mod others;
mod pod;
mod progress;
mod reported;
mod spread;
mod supervised;
mod supervisor;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::NodeAgentStatus;
use lockstep_api::node_agent::{MAX_REPORTS, Report};

pub use supervisor::{
    ChildEnd, ChildProgress, ChildReply, Saved, SupervisorCommand, SupervisorMessage,
    SupervisorState,
};
pub use view::{
    AttemptCall, Exit, NamespacedOrders, NodePlan, NodePod, NodeView, ObservedContainer, Record,
    Records, Stop,
};

use pod::Step;
use view::order_for;

/// Reports kept for pods that have left the node, for a manager that was unavailable. Each write
/// contains them, and the manager stores those of all nodes.
const PAST_REPORTS: usize = 8;

/// Deterministic and idempotent: after the plan is executed, the next plan is empty.
pub fn decide(view: &NodeView<'_>, now: DateTime<Utc>) -> NodePlan {
    let mut records = Records {
        pods: BTreeMap::new(),
        reports: view.records.reports.clone(),
        others: BTreeMap::new(),
    };
    let (mut stop, mut messages) = (Vec::new(), Vec::new());
    for pod in view.pods {
        if pod.awaits_order {
            records.keep(pod, view.records);
            continue;
        }
        let order = order_for(view.orders, pod);
        let reported = &view.records.reports;
        let kept = view.records.pods.get(&pod.uid);
        let remembered = match kept {
            Some(_) => None,
            None => reported::record(pod, reported, view.published, now),
        };
        let record = kept.or(remembered.as_ref());
        let outcome = match (pod.supervised, view.listed) {
            (true, _) => supervised::step(pod, record, order, reported, now),
            (false, true) => pod::step(pod, record, order, reported, now),
            (false, false) => Step {
                record: record.cloned(),
                ..Step::default()
            },
        };
        messages.extend(outcome.command.map(|command| SupervisorMessage {
            pod_uid: pod.uid.clone(),
            command,
        }));
        stop.extend(outcome.stop.into_iter().map(|container_id| Stop {
            pod_uid: pod.uid.clone(),
            container_id,
        }));
        if let Some(mut new) = outcome.record {
            new.called = arrivals::call(pod, &new, record, order, now);
            records.pods.insert(pod.uid.clone(), new);
        }
        records.reports.extend(outcome.reports);
        let record = records.pods.get(&pod.uid);
        let exits = others::exits(pod, record, order, view.records);
        if !exits.noticed.is_empty() {
            records.others.insert(pod.uid.clone(), exits.noticed);
        }
        // One report per container: repeated crashes must not displace reports about training
        // containers.
        for new in &exits.reports {
            let of = |r: &Report| (&r.pod_uid, &r.container) == (&new.pod_uid, &new.container);
            records.reports.retain(|r| !of(r));
        }
        records.reports.extend(exits.reports);
    }
    forget(&mut records.reports, view.pods);

    let arrivals = arrivals::arrivals(view, &records, now);
    let replies = checkpoints::replies(view);
    let news = arrivals.news || replies.news || records.reports != view.published.reports;
    let progress = progress::progress(view, news, now);
    let status = (news || progress.news).then(|| NodeAgentStatus {
        arrivals: arrivals.list,
        reports: records.reports.clone(),
        progress: progress.list,
        checkpoints: replies.list,
        ..view.published.clone()
    });
    let slot = if replies.saved {
        Duration::ZERO
    } else {
        slot(view, &records.reports)
    };
    NodePlan {
        records: (records != *view.records).then_some(records),
        stop,
        messages,
        slot,
        status,
        wake_after: arrivals
            .wake_after
            .into_iter()
            .chain(progress.wake_after)
            .min(),
    }
}

/// Removes the oldest reports, except the last on each existing container: the manager may not have
/// received it.
fn forget(reports: &mut Vec<Report>, pods: &[NodePod]) {
    let mut excess = reports.len().saturating_sub(PAST_REPORTS);
    let present: BTreeSet<&str> = pods.iter().map(|p| p.uid.as_str()).collect();
    let of_present = reports.iter().filter(|r| present.contains(&*r.pod_uid));
    let last: BTreeMap<_, _> = of_present
        .map(|r| ((&r.pod_uid, &r.container), r))
        .collect();
    let kept: Vec<bool> = reports
        .iter()
        .map(|r| {
            let of_container = last.get(&(&r.pod_uid, &r.container));
            let forgotten = excess > 0 && of_container.is_none_or(|last| !std::ptr::eq(*last, r));
            excess -= usize::from(forgotten);
            !forgotten
        })
        .collect();
    let mut kept = kept.into_iter();
    reports.retain(|_| kept.next().unwrap_or_default());
    let excess = reports.len().saturating_sub(MAX_REPORTS);
    reports.drain(..excess);
}

/// How long the status may be delayed. Failures are published at once, because restarts wait for
/// them. Arrivals, completions and the ends that answer a request for a checkpoint wait for the
/// node's slot.
fn slot(view: &NodeView<'_>, reports: &[Report]) -> Duration {
    let mut latest = Duration::ZERO;
    for pod in view.pods {
        let order = order_for(view.orders, pod);
        let attempt = order.map_or(pod.attempt, |o| o.attempt);
        let of_pod = reports.iter().filter(|r| r.pod_uid == pod.uid);
        let replies = |r: &Report| order.is_some_and(|o| checkpoints::is_reply(o, r));
        let mut failures =
            of_pod.filter(|r| r.attempt >= attempt && r.exit_code != 0 && !replies(r));
        if failures.any(|r| !view.published.reports.contains(r)) {
            return Duration::ZERO;
        }
        latest = latest.max(order.map_or(Duration::ZERO, |o| spread::slot(view.node, o)));
    }
    latest
}

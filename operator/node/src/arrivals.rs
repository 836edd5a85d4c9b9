//! Arrivals of a node's members at the attempt of an order.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::NodeAgentStatus;
use lockstep_api::node_agent::{Arrival, ArrivedPod};
use lockstep_api::restart_order::DomainOrder;

use super::supervised;
use super::view::{AttemptCall, NodePod, NodeView, Record, Records, is_ordered, order_for};

/// How long the first arrivals wait for later ones, to share one write. Short, because a hanging
/// member must not delay reports on other members.
const COALESCE: TimeDelta = TimeDelta::seconds(1);

pub(super) struct Arrivals {
    pub list: Vec<Arrival>,
    pub news: bool,
    pub wake_after: Option<Duration>,
}

pub(super) fn arrivals(view: &NodeView<'_>, records: &Records, now: DateTime<Utc>) -> Arrivals {
    let mut domains: BTreeMap<(&str, &str), Vec<&NodePod>> = BTreeMap::new();
    // A pod outside the workload's namespace is no member, and must not hide members.
    let ordered = |pod: &&NodePod| order_for(view.orders, pod).is_some();
    let (members, others): (Vec<_>, Vec<_>) = view.pods.iter().partition(ordered);
    for pod in members {
        let key = (&*pod.workload_uid, &*pod.domain);
        domains.entry(key).or_default().push(pod);
    }
    for pod in others {
        let key = (&*pod.workload_uid, &*pod.domain);
        domains.entry(key).or_insert_with(|| vec![pod]);
    }
    let mut out = Arrivals {
        list: Vec::new(),
        news: false,
        wake_after: None,
    };
    for ((workload_uid, domain), pods) in domains {
        let published = reported_of(view.published, workload_uid, domain);
        let order = pods.first().and_then(|p| order_for(view.orders, p));
        let coming = order.map(|o| Coming::evaluate(o, &pods, records, now));
        let wait = coming.as_ref().and_then(|c| c.next);
        out.wake_after = out.wake_after.into_iter().chain(wait).min();
        match coming.filter(|c| c.due) {
            Some(coming) => {
                let arrival = Arrival {
                    workload_uid: workload_uid.into(),
                    domain: domain.into(),
                    attempt: coming.attempt,
                    pods: coming.arrived,
                    late: coming.late,
                };
                out.news |= published != Some(&arrival);
                out.list.push(arrival);
            }
            None => out.list.extend(published.cloned()),
        }
    }
    out
}

pub(super) fn reported_of<'a>(
    published: &'a NodeAgentStatus,
    workload_uid: &str,
    domain: &str,
) -> Option<&'a Arrival> {
    let mut arrivals = published.arrivals.iter();
    arrivals.find(|a| a.workload_uid == workload_uid && a.domain == domain)
}

/// Members of one domain on this node on their way to an attempt.
struct Coming {
    attempt: i64,
    /// Sorted.
    arrived: Vec<ArrivedPod>,
    /// UIDs of overdue pods, sorted.
    late: Vec<String>,
    /// True if the report is due now.
    due: bool,
    next: Option<Duration>,
}

impl Coming {
    fn evaluate(
        order: &DomainOrder,
        pods: &[&NodePod],
        records: &Records,
        now: DateTime<Utc>,
    ) -> Self {
        let mut arrived = Vec::new();
        let mut late = Vec::new();
        let mut times = Vec::new();
        let mut last = None;
        let expected: Vec<&&NodePod> = pods.iter().filter(|p| is_awaited(order, p)).collect();
        for pod in &expected {
            let Some(record) = records.pods.get(&pod.uid) else {
                continue;
            };
            if has_come(pod, record, order) && record.exited_at.is_none() {
                arrived.push(ArrivedPod {
                    pod_uid: pod.uid.clone(),
                    container_id: record.container_id.clone(),
                    restarts: record.restarts,
                });
                last = last.max(Some(record.seen_at));
            } else if let (Some(call), Some(limit)) = (record.called, arrival_limit(order)) {
                let at = call.at + limit;
                if now >= at {
                    late.push(pod.uid.clone());
                } else {
                    times.push(at);
                }
            }
        }
        arrived.sort();
        late.sort();
        let complete = arrived.len() == expected.len();
        // A clock set back must not delay other arrivals.
        let recent = last.filter(|last| *last <= now);
        let gathered = recent.map(|last| last + COALESCE);
        times.extend(gathered.filter(|at| !complete && now < *at));
        let settled = complete || gathered.is_none_or(|at| now >= at);
        Self {
            attempt: order.attempt,
            due: settled && last.is_some() || !late.is_empty(),
            next: times
                .into_iter()
                .min()
                .and_then(|at| (at - now).to_std().ok()),
            arrived,
            late,
        }
    }
}

/// Time after which the agent reports a member as overdue: the whole deadline. The manager would
/// trust an earlier report even if only the arrival's report is delayed.
fn arrival_limit(order: &DomainOrder) -> Option<TimeDelta> {
    TimeDelta::try_seconds(order.deadline_seconds?)
}

/// The member may have failed since.
fn has_come(pod: &NodePod, record: &Record, order: &DomainOrder) -> bool {
    record.attempt == order.attempt && (record.arrived || !pod.supervised)
}

/// The attempt at which a member is expected. `before`: its previous record.
pub(super) fn call(
    pod: &NodePod,
    record: &Record,
    before: Option<&Record>,
    order: Option<&DomainOrder>,
    now: DateTime<Utc>,
) -> Option<AttemptCall> {
    let order = order.filter(|o| o.deadline_seconds.is_some() && is_awaited(o, pod))?;
    // A lagging API server may still show an earlier order.
    if has_come(pod, record, order) || record.attempt > order.attempt {
        return None;
    }
    let called = before.and_then(|r| r.called);
    let new = AttemptCall {
        attempt: order.attempt,
        at: now,
    };
    // If a clock was set back, the time of the call is in the future.
    let still = called.filter(|c| c.attempt == order.attempt && c.at <= now);
    Some(still.unwrap_or(new))
}

/// The first start, and pods created at the attempt, need arrivals only for a barrier.
fn is_awaited(order: &DomainOrder, pod: &NodePod) -> bool {
    if pod.supervised {
        supervised::is_for(order, pod)
    } else {
        order.since.is_some() && is_ordered(order, pod.member.as_ref())
    }
}

//! Which members have come to the attempt of an order; reported once for all members on the node.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::node_agent::{Arrival, ArrivedPod};
use lockstep_api::restart_order::DomainOrder;

use super::supervised;
use super::view::{NodePod, NodeView, Records, is_ordered, order_for};

/// How long the first arrivals of a node wait for the others. One write tells of all of them, but a
/// member that hangs must not hide its neighbours until their deadline.
const COALESCE: TimeDelta = TimeDelta::seconds(1);

pub(super) struct Arrivals {
    /// The list to publish.
    pub list: Vec<Arrival>,
    /// Whether it tells something that was not published yet.
    pub news: bool,
    /// When members that wait for their neighbours are reported all the same.
    pub wake_after: Option<Duration>,
}

pub(super) fn arrivals(view: &NodeView<'_>, records: &Records, now: DateTime<Utc>) -> Arrivals {
    let mut domains: BTreeMap<(&str, &str), Vec<&NodePod>> = BTreeMap::new();
    for pod in view.pods {
        domains
            .entry((&pod.workload_uid, &pod.domain))
            .or_default()
            .push(pod);
    }
    let mut out = Arrivals {
        list: Vec::new(),
        news: false,
        wake_after: None,
    };
    for ((workload_uid, domain), pods) in domains {
        let published = view
            .published
            .arrivals
            .iter()
            .find(|a| a.workload_uid == workload_uid && a.domain == domain);
        match arrival(view, records, &pods, now) {
            Wanted::Tell(attempt, arrived) => {
                let arrival = Arrival {
                    workload_uid: workload_uid.into(),
                    domain: domain.into(),
                    attempt,
                    pods: arrived,
                };
                out.news |= published != Some(&arrival);
                out.list.push(arrival);
            }
            Wanted::Later(wait) => {
                out.list.extend(published.cloned());
                out.wake_after = Some(out.wake_after.map_or(wait, |w| w.min(wait)));
            }
            Wanted::Nothing => out.list.extend(published.cloned()),
        }
    }
    out
}

enum Wanted {
    Nothing,
    Later(Duration),
    Tell(i64, Vec<ArrivedPod>),
}

fn arrival(
    view: &NodeView<'_>,
    records: &Records,
    pods: &[&NodePod],
    now: DateTime<Utc>,
) -> Wanted {
    let Some(order) = pods.first().and_then(|p| order_for(view.orders, p)) else {
        return Wanted::Nothing;
    };
    let expected: Vec<&&NodePod> = pods.iter().filter(|p| is_awaited(order, p)).collect();
    let here = expected.iter().filter_map(|p| {
        let record = records
            .pods
            .get(&p.uid)
            .filter(|r| r.attempt == order.attempt && r.exited_at.is_none())
            .filter(|r| r.arrived || !p.supervised)?;
        Some((
            ArrivedPod {
                pod_uid: p.uid.clone(),
                container_id: record.container_id.clone(),
                restarts: record.restarts,
            },
            record.seen_at,
        ))
    });
    let (mut arrived, seen): (Vec<ArrivedPod>, Vec<DateTime<Utc>>) = here.unzip();
    arrived.sort();
    let Some(last) = seen.into_iter().max() else {
        return Wanted::Nothing;
    };
    if arrived.len() == expected.len() {
        return Wanted::Tell(order.attempt, arrived);
    }
    match (last + COALESCE - now).to_std() {
        Ok(wait) if !wait.is_zero() => Wanted::Later(wait),
        _ => Wanted::Tell(order.attempt, arrived),
    }
}

/// Whether the arrival of a pod is told. For the first start, and for pods that are new at the
/// attempt, nothing but a barrier waits.
fn is_awaited(order: &DomainOrder, pod: &NodePod) -> bool {
    if pod.supervised {
        supervised::is_for(order, pod)
    } else {
        order.since.is_some() && is_ordered(order, pod.member.as_ref())
    }
}

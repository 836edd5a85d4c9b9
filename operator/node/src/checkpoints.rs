//! Answers of a node's members to the open requests for checkpoints.

use std::collections::BTreeMap;

use lockstep_api::node_agent::{CheckpointReply, Report};
use lockstep_api::restart_order::{DomainOrder, SaveRequestOrder};
use lockstep_api::workload::ends_on_request;

use super::supervised;
use super::supervisor::Saved;
use super::view::{NodePod, NodeView, order_for};

pub(super) struct Replies {
    pub list: Vec<CheckpointReply>,
    /// Answers without an open request alone are no reason to publish.
    pub news: bool,
    /// True if the first member of a domain on this node has saved.
    pub saved: bool,
}

pub(super) fn replies(view: &NodeView<'_>) -> Replies {
    let published = &view.published.checkpoints;
    let mut domains: BTreeMap<(&str, &str), Vec<CheckpointReply>> = BTreeMap::new();
    for pod in view.pods {
        let order = order_for(view.orders, pod).filter(|o| supervised::is_for(o, pod));
        let Some((order, request)) = order.and_then(|o| Some((o, o.request.as_ref()?))) else {
            continue;
        };
        let mut before = published.iter();
        let before = before.find(|a| a.pod_uid == pod.uid && a.id == request.id);
        let reply = before.cloned().or_else(|| reply(pod, order, request));
        let domain = domains.entry((&pod.workload_uid, &pod.domain)).or_default();
        domain.extend(reply);
    }
    let mut replies = Replies {
        list: Vec::new(),
        news: false,
        saved: false,
    };
    for all in domains.into_values() {
        // The first member that has saved answers for its domain.
        let saved = all.iter().filter(|a| a.saved.is_some());
        let first = saved.min_by_key(|a| !published.contains(a)).cloned();
        replies.list.extend(first.map_or(all, |first| vec![first]));
    }
    let new = replies.list.iter().filter(|a| !published.contains(a));
    let saved: Vec<bool> = new.map(|a| a.saved.is_some()).collect();
    (replies.news, replies.saved) = (!saved.is_empty(), saved.contains(&true));
    replies.list.sort_by(|a, b| a.pod_uid.cmp(&b.pod_uid));
    replies
}

fn reply(
    pod: &NodePod,
    order: &DomainOrder,
    request: &SaveRequestOrder,
) -> Option<CheckpointReply> {
    let state = pod.supervisor.as_ref()?;
    let reply = |saved| CheckpointReply {
        pod_uid: pod.uid.clone(),
        id: request.id.clone(),
        saved,
    };
    if !state.takes_requests {
        return (state.running == Some(order.attempt)).then(|| reply(None));
    }
    match state.answer_to(order.attempt, &request.id)? {
        Saved::NotYet => None,
        Saved::Step(step) => Some(reply(Some(step))),
        Saved::Unsupported => Some(reply(None)),
    }
}

/// True if an exit answers the open request: the process has saved and ended.
pub(super) fn is_reply(order: &DomainOrder, report: &Report) -> bool {
    let signal = order.checkpoint.as_ref().and_then(|c| c.signal);
    order.request.is_some() && report.supervised && ends_on_request(report.exit_code, signal)
}

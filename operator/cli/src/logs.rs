mod attempt;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use lockstep_api::TrainingWorkload;
use lockstep_api::member::Member;
use lockstep_api::membership::Membership;
use lockstep_api::time::utc;
use lockstep_api::workload::{Cause, FailureAction};
use thiserror::Error;

use crate::members::{NoPod, no_member, no_pod, ranked_members, training_container};
use crate::objects::member;

pub use attempt::AttemptLog;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSelection {
    pub group: Option<String>,
    /// The member with this rank, in each world if there are several.
    pub rank: Option<i32>,
    /// The member that failed first in the last failure.
    pub failed: bool,
    pub all: bool,
    /// Name of a container. Default: the training container, or the failed container.
    pub container: Option<String>,
    pub previous: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSource {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    pub previous: bool,
    pub prefix: String,
    /// Restricts the log to one attempt: the last one up to this number. `None`: all lines.
    pub up_to_attempt: Option<i64>,
    /// The failure whose log is selected, in words.
    pub failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoLog {
    #[error(transparent)]
    NoPod(#[from] NoPod),
    #[error(
        "no member of {name:?} has failed; `kubectl lockstep logs {name} -n {namespace}` shows the present log"
    )]
    NothingFailed { name: String, namespace: String },
    #[error("the log of pod {pod:?}, which failed {when}, was deleted with the pod: {why}")]
    Deleted {
        pod: String,
        when: DateTime<Utc>,
        why: String,
    },
    /// No workload has the labels.
    #[error(
        "no TrainingWorkload{} has the labels {labels}; `kubectl get tw -A` lists all workloads",
        .namespace.as_ref().map(|n| format!(" in namespace {n:?}")).unwrap_or_default()
    )]
    NoWorkload {
        labels: String,
        /// The searched namespace; `None`: all.
        namespace: Option<String>,
    },
    /// No workload of several has such a log. Warnings gave the reasons.
    #[error("no matching log found in {0} workloads")]
    NoneOf(usize),
}

pub type WithPods = (TrainingWorkload, Vec<Pod>);

/// Selects the logs of each workload, with the reason for each workload without a log. With several
/// workloads, prefixes name them.
pub fn sources_of_each(
    workloads: &[WithPods],
    selection: &LogSelection,
    all_namespaces: bool,
) -> (Vec<LogSource>, Vec<NoLog>) {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for (workload, pods) in workloads {
        let name = workload.name_any();
        let before = match workloads.len() {
            1 => String::new(),
            _ if all_namespaces => format!("{}/{name}/", namespace(workload)),
            _ => format!("{name}/"),
        };
        match sources(workload, pods, selection) {
            Ok(logs) => found.extend(logs.into_iter().map(|log| LogSource {
                prefix: format!("{before}{}", log.prefix),
                ..log
            })),
            Err(why) => missing.push(why),
        }
    }
    (found, missing)
}

fn namespace(workload: &TrainingWorkload) -> String {
    workload.namespace().unwrap_or_default()
}

/// Selects the logs of members, sorted by group and rank.
pub fn sources(
    workload: &TrainingWorkload,
    pods: &[Pod],
    selection: &LogSelection,
) -> Result<Vec<LogSource>, NoLog> {
    if selection.failed {
        return failed(workload, pods, selection).map(|source| vec![source]);
    }
    let members = ranked(workload, pods);
    if members.is_empty() {
        return Err(no_pod(workload, None).into());
    }
    let mut chosen: Vec<&RankedPod<'_>> = members
        .iter()
        .filter(|m| selection.includes(&m.member, m.rank))
        .collect();
    if chosen.is_empty() {
        let all = ranked_members(workload);
        let mut all = all.iter();
        let without_pod = all.find(|(member, rank)| selection.includes(member, Some(*rank)));
        return Err(match without_pod {
            Some((member, _)) => no_pod(workload, Some(member)),
            None => no_member(workload, words(selection)),
        }
        .into());
    }
    // The log of one member usually suffices, because all members log the same.
    if !selection.all && selection.rank.is_none() {
        chosen.truncate(1);
    }
    let sources = chosen.into_iter().map(|m| LogSource {
        namespace: namespace(workload),
        pod: m.pod.name_any(),
        container: selection
            .container
            .clone()
            .unwrap_or_else(|| training_container(m.pod)),
        previous: selection.previous,
        prefix: m.member.to_string(),
        up_to_attempt: None,
        failure: None,
    });
    Ok(sources.collect())
}

struct RankedPod<'a> {
    member: Member,
    rank: Option<i32>,
    pod: &'a Pod,
}

impl LogSelection {
    fn includes(&self, member: &Member, rank: Option<i32>) -> bool {
        let is_in_group = self.group.as_ref().is_none_or(|g| *g == member.group);
        is_in_group && self.rank.is_none_or(|r| rank == Some(r))
    }
}

fn ranked<'a>(workload: &TrainingWorkload, pods: &'a [Pod]) -> Vec<RankedPod<'a>> {
    let status = workload.status.clone().unwrap_or_default();
    let membership = Membership::of(&workload.spec, &status);
    let groups = &workload.spec.groups;
    let mut ranked: Vec<RankedPod<'a>> = pods
        .iter()
        .filter_map(|pod| {
            let member = member(pod)?;
            let rank = membership.place(&member).map(|place| place.rank);
            Some(RankedPod { member, rank, pod })
        })
        .collect();
    ranked.sort_by_cached_key(|m| {
        let group = groups.iter().position(|g| g.name == m.member.group);
        (group, m.member.clone())
    });
    // Drops terminating pods that have a replacement: `pods` has them last.
    ranked.dedup_by(|later, first| later.member == first.member);
    ranked
}

fn failed(
    workload: &TrainingWorkload,
    pods: &[Pod],
    selection: &LogSelection,
) -> Result<LogSource, NoLog> {
    let (cause, attempt) = last_failure(workload).ok_or_else(|| NoLog::NothingFailed {
        name: workload.name_any(),
        namespace: namespace(workload),
    })?;
    let pod = pods.iter().find(|p| p.name_any() == cause.pod);
    let Some(pod) = pod else {
        return Err(NoLog::Deleted {
            pod: cause.pod.clone(),
            when: cause.time,
            why: describe(cause),
        });
    };
    let failed = Some(cause.container.clone()).filter(|c| !c.is_empty());
    let container = selection
        .container
        .clone()
        .or(failed)
        .unwrap_or_else(|| training_container(pod));
    let prefix = member(pod).map_or_else(|| pod.name_any(), |m| m.to_string());
    Ok(LogSource {
        namespace: namespace(workload),
        previous: selection.previous || has_restarted(pod, &container, cause.time),
        pod: pod.name_any(),
        container,
        prefix,
        up_to_attempt: Some(attempt),
        failure: Some(describe(cause)),
    })
}

fn describe(cause: &Cause) -> String {
    let container = match cause.exit_code {
        Some(code) => format!("container {} exited with code {code}", cause.container),
        None => cause.kind.as_str().to_owned(),
    };
    let text = format!("{container} {}", cause.message);
    text.trim_end().to_owned()
}

/// First cause of the open incident or replacement, else of the last failure, and the failed attempt.
fn last_failure(workload: &TrainingWorkload) -> Option<(&Cause, i64)> {
    let status = workload.status.as_ref()?;
    let open = status.domains.iter().flat_map(|d| {
        let incident = d
            .incident
            .iter()
            .map(|i| (&i.cause, failed_attempt(i.attempt, i.action)));
        incident.chain(d.replacement.iter().map(|r| (&r.cause, d.attempt)))
    });
    let past = status
        .history
        .iter()
        .map(|h| (&h.cause, failed_attempt(h.attempt, h.action)));
    let mut failures = open.chain(past).filter(|(c, _)| !c.kind.is_requested());
    failures.find(|(c, _)| !c.pod.is_empty())
}

/// The failed attempt, from the attempt that the incident leads to.
fn failed_attempt(attempt: i64, action: FailureAction) -> i64 {
    attempt - i64::from(action.raises_attempt())
}

/// True if the shown container is newer than the failed one.
fn has_restarted(pod: &Pod, container: &str, failed_at: DateTime<Utc>) -> bool {
    let statuses = pod.status.iter().flat_map(|s| {
        let init = s.init_container_statuses.iter().flatten();
        init.chain(s.container_statuses.iter().flatten())
    });
    let mut of_container = statuses.filter(|s| s.name == container);
    of_container.any(|s| s.restart_count > 0 && began_after(s, failed_at))
}

/// True if the current or last container was started after this time. The kubelet keeps whole
/// seconds, so a container that ended within the same second is the failed one.
fn began_after(status: &ContainerStatus, time: DateTime<Utc>) -> bool {
    let Some(state) = &status.state else {
        return false;
    };
    let seconds = |at: Option<&Time>| at.and_then(utc).map(|at| at.timestamp());
    let running = state.running.as_ref().map(|r| r.started_at.as_ref());
    let ended = state
        .terminated
        .as_ref()
        .filter(|t| seconds(t.finished_at.as_ref()) > Some(time.timestamp()));
    let started = running.or(ended.map(|t| t.started_at.as_ref())).flatten();
    seconds(started) >= Some(time.timestamp())
}

fn words(selection: &LogSelection) -> String {
    match (&selection.group, selection.rank) {
        (Some(group), Some(rank)) => format!("of rank {rank} in group {group:?}"),
        (Some(group), None) => format!("in group {group:?}"),
        (None, Some(rank)) => format!("of rank {rank}"),
        (None, None) => "there".to_owned(),
    }
}

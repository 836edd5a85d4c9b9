//! Selection of members and their pods.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_api::TrainingWorkload;
use lockstep_api::member::Member;
use lockstep_api::membership::Membership;
use thiserror::Error;

use crate::objects::member;

/// Most members in one message.
const NAMED: usize = 4;

/// Why a member has no pod.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoPod {
    #[error("{who} has no pod: {why}; `kubectl lockstep status {name} -n {namespace}` shows more")]
    None {
        /// The workload or the member.
        who: String,
        /// Reason and message of the workload.
        why: String,
        name: String,
        namespace: String,
    },
    #[error("{name:?} has no member {requested}; its members: {members}")]
    NoMember {
        name: String,
        requested: String,
        members: String,
    },
    #[error("{name:?} has several members of rank {rank}: --member selects one of {members}")]
    Several {
        name: String,
        rank: String,
        members: String,
    },
}

/// Workload, member and path of `NAME:PATH` or `NAME/MEMBER:PATH`; `None` for a local path.
pub fn path_in_member(text: &str) -> Option<(&str, Option<&str>, &str)> {
    let (place, path) = text.split_once(':')?;
    Some(match place.split_once('/') {
        Some((name, member)) => (name, Some(member), path),
        None => (place, None, path),
    })
}

/// All members that run according to the ledger, in the order of the spec, with their ranks.
pub fn ranked_members(workload: &TrainingWorkload) -> Vec<(Member, i32)> {
    let spec = &workload.spec;
    let status = workload.status.clone().unwrap_or_default();
    let membership = Membership::of(spec, &status);
    let groups = spec.groups.iter().zip(spec.replica_counts());
    let all = groups.flat_map(|(group, replicas)| {
        let name = group.name.as_str();
        (0..replicas).flat_map(move |r| (0..group.size).map(move |i| Member::new(name, r, i)))
    });
    let ranked = |member| {
        let rank = membership.place(&member)?.rank;
        Some((member, rank))
    };
    all.filter_map(ranked).collect()
}

/// The current pod of one member. `choice`: rank or name of the member; `None`: the first member.
/// `pods`: pods that the workload owns, terminating pods last.
pub fn pod_of<'p>(
    workload: &TrainingWorkload,
    pods: &'p [Pod],
    choice: Option<&str>,
) -> Result<&'p Pod, NoPod> {
    let mut chosen = ranked_members(workload);
    if let Some(choice) = choice {
        chosen.retain(|(m, rank)| rank.to_string() == choice || m.to_string() == choice);
        // Names of members are different.
        if chosen.len() > 1 {
            let members: Vec<String> = chosen.iter().map(|(m, _)| m.to_string()).collect();
            let more = if members.len() > NAMED { ", ..." } else { "" };
            let members = members[..members.len().min(NAMED)].join(", ");
            return Err(NoPod::Several {
                name: workload.name_any(),
                rank: choice.to_owned(),
                members: members + more,
            });
        }
    } else {
        chosen.truncate(1);
    }
    match (chosen.first(), choice) {
        (Some((first, _)), _) => {
            let mut pods = pods.iter();
            let pod = pods.find(|pod| member(pod).as_ref() == Some(first));
            pod.ok_or_else(|| no_pod(workload, Some(first)))
        }
        (None, None) => Err(no_pod(workload, None)),
        (None, Some(choice)) => Err(no_member(
            workload,
            match choice.parse::<i32>() {
                Ok(rank) => format!("of rank {rank}"),
                Err(_) => format!("{choice:?}"),
            },
        )),
    }
}

/// The error for a member, or a workload, without a pod.
pub fn no_pod(workload: &TrainingWorkload, member: Option<&Member>) -> NoPod {
    let name = workload.name_any();
    let (reason, message) = match &workload.status {
        Some(status) => (status.reason.as_str(), status.message.as_str()),
        None => ("", ""),
    };
    NoPod::None {
        who: member.map_or_else(
            || format!("{name:?}"),
            |member| format!("member {member} of {name:?}"),
        ),
        why: match (reason, message) {
            ("", _) => "the manager has not written a status yet".to_owned(),
            (reason, "") => reason.to_owned(),
            (reason, message) => format!("{reason}: {message}"),
        },
        namespace: workload.namespace().unwrap_or_default(),
        name,
    }
}

/// The error for a member that does not run, with the ranks of all members.
pub fn no_member(workload: &TrainingWorkload, requested: String) -> NoPod {
    let all = ranked_members(workload);
    let groups = workload.spec.groups.iter().filter_map(|group| {
        let members = all.iter().filter(|(m, _)| m.group == group.name);
        let ranks: Vec<i32> = members.map(|(_, rank)| *rank).collect();
        let (first, last) = (ranks.iter().min()?, ranks.iter().max()?);
        let (count, name) = (ranks.len(), &group.name);
        Some(format!(
            "{count} in group {name:?} (ranks {first} to {last})"
        ))
    });
    NoPod::NoMember {
        name: workload.name_any(),
        requested,
        members: groups.collect::<Vec<_>>().join(", "),
    }
}

/// Name of the training container.
pub fn training_container(pod: &Pod) -> String {
    let annotated = pod
        .annotations()
        .get("kubectl.kubernetes.io/default-container");
    let first = pod.spec.as_ref().and_then(|s| s.containers.first());
    annotated
        .or(first.map(|c| &c.name))
        .cloned()
        .unwrap_or_default()
}

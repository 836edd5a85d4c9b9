//! What every page shows around its panels.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use super::needs::needs;
use super::view::{ClusterView, Read};
use crate::roles::{for_dashboard, remedy};
use crate::version::CLIENT;

pub fn frame(view: &ClusterView, now: DateTime<Utc>) -> Value {
    let known = view.namespaces.iter().flatten();
    let mut namespaces: Vec<String> = known.filter_map(|n| n.metadata.name.clone()).collect();
    if view.namespaces.is_none() {
        let read = view.workloads().iter();
        namespaces.extend(read.filter_map(|w| w.metadata.namespace.clone()));
    }
    namespaces.extend(view.namespace.clone());
    namespaces.sort();
    namespaces.dedup();
    let leader = view.leader.as_ref().map(|l| {
        let lasts = TimeDelta::seconds(l.duration_seconds);
        let old = l.renewed_at.is_none_or(|at| at + lasts < now);
        json!({"holder": l.holder, "renewedAt": l.renewed_at, "old": old})
    });
    json!({
        "version": CLIENT,
        "context": view.reader.context,
        "user": view.reader.user,
        "server": view.reader.server,
        "namespace": view.namespace,
        "namespaces": namespaces,
        "freshness": freshness(view),
        "leader": leader,
        "workloads": view.workloads().len(),
        "nodes": view.nodes.as_ref().map(Vec::len),
        "needs": needs(view, now).len(),
        "unreadable": unreadable(view),
        "missing": missing(view),
        "otherPods": match (view.pods_requested, &view.pods) {
            (_, Some(_)) => "yes",
            (true, None) => "loading",
            (false, None) => "no",
        },
        "notInstalled": not_installed(view),
    })
}

pub fn unreadable(view: &ClusterView) -> Vec<&String> {
    view.unreadable.values().collect()
}

fn freshness(view: &ClusterView) -> Value {
    if let Some(file) = &view.snapshot {
        let message = "from a snapshot file: what changed later is not shown";
        return json!({"state": "snapshot", "since": file.taken_at, "message": message});
    }
    let failed = view.reads.iter().find_map(|(what, read)| match read {
        Read::Failed { message } => Some(("stale", format!("{what}: {message}"))),
        _ => None,
    });
    let needed = ["trainingworkloads", "podgroups", "nodes"];
    let unread = needed
        .into_iter()
        .find(|what| !view.reads.contains_key(*what));
    let unread = unread.map(|what| ("stale", format!("{what} have not been read yet")));
    let listed = view.reads.iter().find_map(|(what, read)| match read {
        Read::Listed { .. } => Some((
            "polling",
            format!("{what} are listed each 10 s: no right to watch them"),
        )),
        _ => None,
    });
    let (state, message) = failed.or(unread).or(listed).unwrap_or_default();
    let state = if state.is_empty() { "live" } else { state };
    json!({"state": state, "since": view.last_read, "message": message})
}

/// Rights that the reader lacks, with the command with which an administrator grants them.
fn missing(view: &ClusterView) -> Vec<Value> {
    let user = quoted(view.reader.user.as_deref().unwrap_or("USER"));
    let reads = view.reads.iter();
    let lacking = reads.filter_map(|(what, read)| match read {
        Read::Refused { message } | Read::Listed { message } => Some((what, message)),
        _ => None,
    });
    let rights = lacking.map(|(what, message)| {
        let verb = message.split_once(" cannot ");
        let verb = verb.and_then(|(_, rest)| rest.split_whitespace().next());
        let (role, namespace) = for_dashboard(message);
        let command = match namespace {
            Some(namespace) => format!(
                "kubectl create rolebinding {role} --clusterrole={role} --user={user} -n {namespace}"
            ),
            None => {
                format!("kubectl create clusterrolebinding {role} --clusterrole={role} --user={user}")
            }
        };
        let message = format!("{message}; {}", remedy(message));
        json!({"what": what, "verb": verb, "message": message, "command": command})
    });
    rights.collect()
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@:._-".contains(c);
    if word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn not_installed(view: &ClusterView) -> Option<&String> {
    let ours = ["trainingworkloads", "podgroups"].into_iter();
    ours.filter_map(|kind| view.reads.get(kind))
        .find_map(|read| match read {
            Read::NotServed { message } => Some(message),
            _ => None,
        })
}

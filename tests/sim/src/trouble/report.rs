//! Report of a failed story.

use k8s_openapi::api::core::v1::{Node, Pod};
use lockstep_api::TrainingWorkload;
use serde_json::{Value, json};

use crate::SimCluster;
use crate::api::Write;
use crate::pods::{leaving, node_of};

/// Number of last writes whose changes are shown.
const LAST: usize = 12;

/// The current workloads, a few lines each.
pub(super) fn workloads(cluster: &SimCluster) -> String {
    let all = cluster.list::<TrainingWorkload>().into_iter();
    let each = all.map(|w| {
        let status = w.status.unwrap_or_default();
        let told = status.conditions.iter();
        let told =
            told.map(|c| format!("    {} {:?} {} {}", c.type_, c.status, c.reason, c.message));
        let told: Vec<String> = told.collect();
        let ledger = json!({"gangs": status.gangs, "domains": status.domains});
        let name = w.metadata.name.unwrap_or_default();
        let (phase, ready, told) = (status.phase, status.ready, told.join("\n"));
        format!(
            "{name} {phase:?} {ready}\n{told}\n    {ledger}\n    {}",
            json!(w.spec)
        )
    });
    each.collect::<Vec<_>>().join("\n")
}

/// The nodes and their pods, with what they offer and request.
pub(super) fn nodes(cluster: &SimCluster) -> String {
    let pods = cluster.list::<Pod>();
    let each = cluster.list::<Node>().into_iter().map(|node| {
        let name = node.metadata.name.unwrap_or_default();
        let here = pods.iter().filter(|pod| node_of(pod) == Some(&name));
        let here = here.map(|pod| {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let requests = containers.map(|c| json!(c.resources)["requests"].to_string());
            let requests: Vec<String> = requests.collect();
            let leaving = if leaving(pod) { " terminating" } else { "" };
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            format!("\n    {name}{leaving} {}", requests.join(" "))
        });
        let offers = json!(node.status)["allocatable"].to_string();
        format!("{name} {offers}{}", here.collect::<String>())
    });
    each.collect::<Vec<_>>().join("\n")
}

/// Changes by the last writes, latest first.
pub(super) fn changes(cluster: &SimCluster) -> String {
    let store = cluster.store();
    let last = (0..store.log.len()).rev().take(LAST);
    let told = last.map(|at| {
        let write = &store.log[at];
        let before = store.log[..at].iter().rev().find(|w| w.uid == write.uid);
        change(before, write)
    });
    told.collect::<Vec<_>>().join("\n")
}

fn change(before: Option<&Write>, write: &Write) -> String {
    let old = before.map_or(&Value::Null, |w| &w.object["status"]);
    let fields = write.object["status"].as_object().into_iter().flatten();
    let changed = fields.filter(|(field, new)| old[field.as_str()] != **new);
    let lines = changed.map(|(field, new)| {
        let old = &old[field.as_str()];
        format!("\n    {field}: {old}\n      -> {new}")
    });
    write.line() + &lines.collect::<String>()
}

//! Labels and annotations of Kueue, on jobs of all kinds and on their pod templates.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::draft::{Draft, size};
use crate::error::Result;

/// Begins all labels and annotations that only Kueue reads.
const PREFIX: &str = "kueue.x-k8s.io/";
const TOPOLOGY: &str = "/spec/scheduling/topology/levels";
const SLICES: &str = "not converted. Give each replica as many members as a slice has (replicas, size), and add a level with scope Replica to spec.scheduling.topology.levels.";

/// The topology that a pod template requests.
struct Podset {
    group: usize,
    key: Option<(String, &'static str)>,
    slice: Option<(String, Option<i64>)>,
    joined: bool,
}

/// Replaces what Kueue reads by fields with the same meaning, or by comments.
pub fn convert(draft: &mut Draft) -> Result<()> {
    convert_job(draft);
    let mut podsets = Vec::new();
    for n in 0..draft.groups().len() {
        podsets.extend(convert_template(draft, n)?);
    }
    place(draft, &podsets)
}

/// Takes Kueue's labels and annotations out of an object or template.
fn take(object: &mut Value) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for field in ["labels", "annotations"] {
        let Some(entries) = object.pointer_mut(&format!("/metadata/{field}")) else {
            continue;
        };
        let Some(entries) = entries.as_object_mut() else {
            continue;
        };
        entries.retain(|key, value| {
            let name = key.strip_prefix(PREFIX);
            let text = value.as_str().unwrap_or_default();
            name.map(|name| out.insert(name.to_owned(), text.to_owned()))
                .is_none()
        });
        if entries.is_empty()
            && let Some(metadata) = object["metadata"].as_object_mut()
        {
            metadata.remove(field);
        }
    }
    if object["metadata"]
        .as_object()
        .is_some_and(serde_json::Map::is_empty)
        && let Some(object) = object.as_object_mut()
    {
        object.remove("metadata");
    }
    out
}

fn convert_job(draft: &mut Draft) {
    let labels = take(&mut draft.workload);
    for (name, value) in &labels {
        let path = format!("metadata[{PREFIX}{name}]: {value}");
        let number = value.parse::<i64>().ok();
        match (name.as_str(), number) {
            ("queue-name", _) => {
                draft.note("/spec", &path, "left out. Lockstep has one queue, ordered by priority and by the share of the namespace; set spec.priorityClassName.");
                resume(draft);
            }
            ("priority-class", _) => draft.note(
                "/spec",
                &path,
                "left out. It is a class of Kueue; name a PriorityClass in spec.priorityClassName.",
            ),
            ("max-exec-time-seconds", Some(seconds)) => {
                let field = "/spec/activeDeadlineSeconds";
                if draft.workload.pointer(field).is_none() {
                    draft.set(field, json!(seconds));
                }
            }
            ("job-min-parallelism", Some(minimum)) => draft.elastic(&path, minimum),
            _ => draft.note("/spec", &path, "left out. Only Kueue reads it."),
        }
    }
}

/// Jobs of a queue are suspended until Kueue admits them. No Kueue resumes a workload.
fn resume(draft: &mut Draft) {
    let spec = draft.workload["spec"].as_object_mut();
    if spec.and_then(|spec| spec.remove("suspend")) == Some(json!(true)) {
        draft.note(
            "/spec",
            "spec.suspend: true",
            "left out. Kueue resumes the jobs of its queues; a workload is queued at once. Set it again to hold the workload back.",
        );
    }
}

fn convert_template(draft: &mut Draft, n: usize) -> Result<Option<Podset>> {
    let labels = take(&mut draft.groups_mut()?[n]["template"]);
    let mut podset = Podset {
        group: n,
        key: None,
        slice: None,
        joined: labels.contains_key("podset-group-name"),
    };
    let slice_size = labels
        .get("podset-slice-size")
        .map(|size| size.parse().ok());
    for (name, value) in &labels {
        match name.as_str() {
            "podset-required-topology" => podset.key = Some((value.clone(), "Required")),
            "podset-preferred-topology" => podset.key = Some((value.clone(), "Preferred")),
            "podset-slice-required-topology" => {
                podset.slice = Some((value.clone(), slice_size.unwrap_or_default()));
            }
            "podset-slice-size" | "podset-group-name" | "podset-unconstrained-topology" => {}
            _ => {
                let at = format!("/spec/groups/{n}/template");
                let path = format!("template of group {n}, metadata[{PREFIX}{name}]: {value}");
                draft.note(&at, &path, "left out. Only Kueue reads it.");
            }
        }
    }
    Ok((podset.key.is_some() || podset.slice.is_some()).then_some(podset))
}

/// Adds the levels of the topology. In Kueue each template has its own domain.
fn place(draft: &mut Draft, podsets: &[Podset]) -> Result<()> {
    let own = |n: usize| podsets.iter().any(|p| p.group == n && p.key.is_some());
    let mut groups = draft.groups().iter().enumerate();
    let one_replica = groups.all(|(n, group)| {
        let count = if own(n) {
            draft.replicas(group)
        } else {
            size(group)
        };
        count == 1
    });
    let joined = podsets.iter().any(|p| p.joined) || draft.groups().len() == 1;
    let by_group = draft.workload.pointer("/spec/scheduling/gang/scope") == Some(&json!("Group"));
    let by_replica = one_replica && !joined && !by_group;
    let mut groups = draft.groups().iter().enumerate();
    let stricter = if by_group {
        groups.any(|(n, group)| !own(n) && draft.replicas(group) * size(group) > 1)
    } else {
        !joined && !by_replica
    };
    for podset in podsets {
        if let Some((key, mode)) = &podset.key {
            let scope = if by_replica { "Replica" } else { "Gang" };
            add_level(draft, key, mode, scope);
            if stricter {
                let path = format!(
                    "template of group {}, {PREFIX}podset topology",
                    podset.group
                );
                draft.note(TOPOLOGY, &path, "members of other groups are placed in one domain, too. Topology of one group needs a workload of its own.");
            }
        }
    }
    for podset in podsets {
        let Some((key, slice)) = &podset.slice else {
            continue;
        };
        if split(draft, podset.group, *slice)? {
            add_level(draft, key, "Required", "Replica");
        } else {
            let path = format!("{PREFIX}podset-slice-required-topology: {key}");
            draft.note(&format!("/spec/groups/{}", podset.group), &path, SLICES);
        }
    }
    Ok(())
}

/// Makes each slice of a group a replica. False if that would change the names of members.
fn split(draft: &mut Draft, n: usize, slice: Option<i64>) -> Result<bool> {
    let indexed = draft.origin["apiVersion"] == "batch/v1";
    let group = &draft.groups()[n];
    let (replicas, members) = (draft.replicas(group), size(group));
    let Some(slice) = slice.or(Some(members)).filter(|slice| *slice > 0) else {
        return Ok(false);
    };
    if slice == members {
        return Ok(true);
    }
    if !indexed || members != 1 || replicas % slice != 0 {
        return Ok(false);
    }
    let group = &mut draft.groups_mut()?[n];
    group["replicas"] = json!(replicas / slice);
    group["size"] = json!(slice);
    Ok(true)
}

/// Adds a level, with those of the gang outside those of a replica.
fn add_level(draft: &mut Draft, key: &str, mode: &str, scope: &str) {
    let topology = draft.workload.pointer("/spec/scheduling/topology");
    let mut levels = match topology {
        Some(topology) if topology["levels"].is_array() => {
            topology["levels"].as_array().cloned().unwrap_or_default()
        }
        Some(short) => vec![short.clone()],
        None => Vec::new(),
    };
    let same = |level: &Value| level["key"] == key && level["scope"] == scope;
    if levels.iter().any(same) {
        return;
    }
    let mut level = json!({"key": key, "scope": scope});
    if mode == "Preferred" {
        level["mode"] = json!(mode);
    }
    levels.push(level);
    levels.sort_by_key(|level| level["scope"] == "Replica");
    draft.set("/spec/scheduling/topology", json!({"levels": levels}));
}

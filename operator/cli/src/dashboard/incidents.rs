//! Finished incidents of all workloads, from their histories.

use chrono::{DateTime, Utc};
use lockstep_api::workload::HistoryEntry;
use lockstep_api::{PodGroup, TrainingWorkload};
use serde_json::{Map, Value, json};

use super::view::{ClusterView, path_of};

pub fn incidents(view: &ClusterView, namespace: Option<&str>) -> Value {
    let mut rows = Map::new();
    for (workload, entry) in entries(view, namespace) {
        let path = path_of(workload);
        let mut row = incident(entry);
        row["workload"] = json!(path);
        rows.insert(format!("{path}/{}", id(entry)), row);
    }
    json!({ "rows": rows })
}

/// All entries of the histories in a namespace, or in all.
pub fn entries<'v>(
    view: &'v ClusterView,
    namespace: Option<&'v str>,
) -> impl Iterator<Item = (&'v TrainingWorkload, &'v HistoryEntry)> {
    view.workloads_in(namespace).flat_map(|w| {
        let histories = w.status.iter().flat_map(|s| &s.history);
        histories.map(move |entry| (w, entry))
    })
}

/// Identifies an entry in its workload.
pub fn id(entry: &HistoryEntry) -> String {
    let at = entry.time.timestamp_millis();
    format!("{}/{}/{at}", entry.domain, entry.attempt)
}

pub fn incident(entry: &HistoryEntry) -> Value {
    let (cause, phases) = (&entry.cause, &entry.phases);
    let node = Some(&cause.node).filter(|node| !node.is_empty());
    let took = entry.recovered_at.map(|at| at - entry.time);
    json!({
        "at": entry.time,
        "cause": cause,
        "node": node,
        "exitCode": cause.exit_code,
        "domain": entry.domain,
        "attempt": entry.attempt,
        "action": entry.action.as_str(),
        "counted": entry.counted,
        "totalMs": took.map(|t| t.num_milliseconds().max(0)),
        "phases": {
            "detect": phases.detect_ms,
            "decide": phases.decide_ms,
            "stop": phases.stop_ms,
            "barrier": phases.barrier_ms,
            "start": phases.start_ms,
        },
        "lostAcceleratorSeconds": entry.lost_accelerator_seconds,
        "restartAcceleratorSeconds": entry.restart_accelerator_seconds,
        "recoveredAt": entry.recovered_at,
    })
}

/// Incidents since a time, of all kinds.
pub fn since(
    view: &ClusterView,
    at: DateTime<Utc>,
) -> impl Iterator<Item = (&TrainingWorkload, &HistoryEntry)> {
    entries(view, None).filter(move |(_, entry)| entry.time >= at)
}

/// Priority of a workload: the highest of its gangs.
pub fn priority(groups: &[PodGroup], workload: &TrainingWorkload) -> Option<i32> {
    let own = groups.iter().filter(|g| crate::objects::owns(workload, *g));
    own.map(|g| g.spec.gang.priority).max()
}

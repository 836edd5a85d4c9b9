//! The field that a command writes, and its description.

use chrono::{DateTime, SecondsFormat, Utc};
use kube::ResourceExt;
use lockstep_api::TrainingWorkload;
use lockstep_api::names::{MANAGED_BY, annotations};
use lockstep_api::time::utc;
use lockstep_api::words::time;
use lockstep_api::workload::{CheckpointOccasion, CheckpointSignal, Phase};
use serde_json::{Value, json};
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldEdit {
    /// Restart all members once, without use of the restart budget.
    Restart,
    /// Delete all pods and release their nodes.
    Suspend,
    /// Queue the workload again.
    Resume,
    /// Request a checkpoint; the time is its id.
    RequestCheckpoint(DateTime<Utc>),
    /// Record a checkpoint of this time.
    RecordCheckpoint(DateTime<Utc>),
}

impl FieldEdit {
    pub fn unchanged(self) -> &'static str {
        match self {
            Self::Suspend => "already suspended",
            Self::Resume => "not suspended",
            Self::Restart | Self::RequestCheckpoint(_) | Self::RecordCheckpoint(_) => {
                "already recorded"
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct FieldChange {
    pub field: String,
    pub from: Value,
    pub to: Value,
    pub effect: &'static str,
    /// Merge patch with the resource version that was read.
    pub patch: Value,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Declined {
    #[error("{0:?} has finished ({1}); to run it again, delete the workload and apply it again")]
    Ended(String, &'static str),
    /// Another controller manages the workload.
    #[error("spec.managedBy of {0:?} is {1:?}: Lockstep does not manage this workload")]
    Foreign(String, String),
    #[error("{0:?} is suspended: resume the workload with `kubectl lockstep resume`")]
    Suspended(String),
    /// No process runs. Contains the phase and its message.
    #[error("no member of {0:?} runs: {1}")]
    NotRunning(String, String),
    #[error(
        "{0:?} has no spec.checkpoint.onRequest: its processes accept no request for a checkpoint; `--record` records a checkpoint that was saved"
    )]
    NoRequests(String),
    #[error(
        "spec.checkpoint.onRequest.occasions of {0:?} does not contain User: add it to request checkpoints"
    )]
    NotAnOccasion(String),
    /// The time of the checkpoint precedes the creation of the workload.
    #[error("checkpoint time {0} is before the creation of the workload at {1}")]
    BeforeCreation(String, String),
    #[error("checkpoint time {0} is in the future: pass the time when the state was saved")]
    Future(String),
}

/// Returns the field to write; `None` if it already has the requested value.
pub fn change(
    workload: &TrainingWorkload,
    edit: FieldEdit,
    now: DateTime<Utc>,
) -> Result<Option<FieldChange>, Declined> {
    let metadata = &workload.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    let spec = &workload.spec;
    if spec.managed_by != MANAGED_BY {
        return Err(Declined::Foreign(name, spec.managed_by.clone()));
    }
    let phase = workload.status.as_ref().and_then(|s| s.phase);
    if let Some(phase @ (Phase::Succeeded | Phase::Failed)) = phase {
        return Err(Declined::Ended(name, phase.as_str()));
    }
    let version = metadata.resource_version.as_deref();
    let created = metadata.creation_timestamp.as_ref().and_then(utc);
    Ok(match edit {
        FieldEdit::Restart if spec.suspend => return Err(Declined::Suspended(name)),
        FieldEdit::Restart if !has_run(workload) => return Err(not_running(workload, name)),
        FieldEdit::Restart => {
            let (from, to) = (spec.restart_nonce, spec.restart_nonce.saturating_add(1));
            let patch =
                json!({"metadata": {"resourceVersion": version}, "spec": {"restartNonce": to}});
            let effect = "all members restart once, without using the restart budget";
            Some(field(
                "spec.restartNonce",
                json!(from),
                json!(to),
                effect,
                patch,
            ))
        }
        FieldEdit::Suspend => {
            let effect = "its pods terminate gracefully and its nodes are released";
            suspend(workload, true, effect)
        }
        FieldEdit::Resume => suspend(workload, false, "the workload is queued for capacity"),
        FieldEdit::RecordCheckpoint(at) if at > now => return Err(Declined::Future(time(at))),
        FieldEdit::RecordCheckpoint(at) if created.is_some_and(|created| at < created) => {
            let created = created.map(time).unwrap_or_default();
            return Err(Declined::BeforeCreation(time(at), created));
        }
        FieldEdit::RecordCheckpoint(at) => {
            let effect = "only work after this time counts as lost in restarts and preemptions";
            annotation(workload, annotations::LAST_CHECKPOINT, &time(at), effect)
        }
        FieldEdit::RequestCheckpoint(at) => {
            let on_request = spec.checkpoint.as_ref().map(|c| &c.on_request);
            let Some(on_request) = on_request else {
                return Err(Declined::NoRequests(name));
            };
            if !on_request.occasions.contains(&CheckpointOccasion::User) {
                return Err(Declined::NotAnOccasion(name));
            }
            if spec.suspend {
                return Err(Declined::Suspended(name));
            }
            if !is_running(workload) {
                return Err(not_running(workload, name));
            }
            let effect = match on_request.signal {
                Some(CheckpointSignal::Term) => {
                    "a checkpoint is requested from all processes, which then end; the gang restarts"
                }
                _ => "a checkpoint is requested from all processes; nothing is stopped",
            };
            let id = request_id(at);
            annotation(workload, annotations::REQUEST_CHECKPOINT, &id, effect)
        }
    })
}

/// Id of a request of this time.
pub fn request_id(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Changes an annotation; `None` if it already has this value.
fn annotation(
    workload: &TrainingWorkload,
    key: &str,
    to: &str,
    effect: &'static str,
) -> Option<FieldChange> {
    let version = workload.metadata.resource_version.as_deref();
    let from = workload.annotations().get(key);
    let patch = json!({"metadata": {"resourceVersion": version, "annotations": {key: to}}});
    let name = format!("metadata.annotations[{key}]");
    (from.map(String::as_str) != Some(to))
        .then(|| field(&name, json!(from), json!(to), effect, patch))
}

fn not_running(workload: &TrainingWorkload, name: String) -> Declined {
    let status = workload.status.clone().unwrap_or_default();
    let phase = status.phase.map_or("not reconciled yet", Phase::as_str);
    let words = [phase, &status.message];
    let words = words.into_iter().filter(|w| !w.is_empty());
    Declined::NotRunning(name, words.collect::<Vec<_>>().join(": "))
}

/// True if all members of a restart domain run.
fn is_running(workload: &TrainingWorkload) -> bool {
    let domains = workload.status.iter().flat_map(|s| &s.domains);
    let mut running = domains.filter(|d| d.healthy_since.is_some() && d.incident.is_none());
    running.next().is_some()
}

/// False if the workload has no pod, because it has not been placed.
fn has_run(workload: &TrainingWorkload) -> bool {
    let Some(status) = &workload.status else {
        return false;
    };
    let unplaced = matches!(status.phase, None | Some(Phase::Pending | Phase::Stalled));
    !unplaced || status.groups.iter().any(|group| group.created > 0)
}

/// Changes `spec.suspend`; `None` if it already has this value.
fn suspend(workload: &TrainingWorkload, to: bool, effect: &'static str) -> Option<FieldChange> {
    let version = workload.metadata.resource_version.as_deref();
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"suspend": to}});
    let now = workload.spec.suspend;
    (now != to).then(|| field("spec.suspend", json!(now), json!(to), effect, patch))
}

fn field(field: &str, from: Value, to: Value, effect: &'static str, patch: Value) -> FieldChange {
    FieldChange {
        field: field.to_owned(),
        from,
        to,
        effect,
        patch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(spec: &Value, phase: Option<&str>) -> TrainingWorkload {
        let mut value = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
            "metadata": {"name": "llama", "resourceVersion": "7"},
            "spec": {"groups": [{"name": "w", "template": {"spec": {"containers": []}}}]}});
        value["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        if let Some(phase) = phase {
            value["status"] = json!({"phase": phase});
        }
        serde_json::from_value(value).unwrap()
    }

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    #[test]
    fn each_wish_writes_one_field_of_the_object_that_was_read() {
        let running = workload(&json!({"restartNonce": 4}), Some("Running"));
        let patch = |edit| change(&running, edit, at(90)).unwrap().map(|c| c.patch);
        let version = |mut patch: Value| {
            patch["metadata"]["resourceVersion"] = json!("7");
            Some(patch)
        };
        assert_eq!(
            patch(FieldEdit::Restart),
            version(json!({"metadata": {}, "spec": {"restartNonce": 5}}))
        );
        assert_eq!(
            patch(FieldEdit::Suspend),
            version(json!({"metadata": {}, "spec": {"suspend": true}}))
        );
        assert_eq!(
            patch(FieldEdit::RecordCheckpoint(at(60))),
            version(
                json!({"metadata": {"annotations": {"training.lockstep.dev/last-checkpoint": "1970-01-01T00:01:00Z"}}})
            )
        );
        assert_eq!(patch(FieldEdit::Resume), None, "it is not suspended");
    }

    #[test]
    fn what_is_over_or_not_ours_is_left_alone() {
        let declined = |spec: &Value, phase, edit| {
            change(&workload(spec, phase), edit, at(90))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            declined(&json!({}), Some("Failed"), FieldEdit::Restart),
            "\"llama\" has finished (Failed); to run it again, delete the workload and apply it again"
        );
        assert_eq!(
            declined(&json!({"managedBy": "kueue"}), None, FieldEdit::Suspend),
            "spec.managedBy of \"llama\" is \"kueue\": Lockstep does not manage this workload"
        );
        assert_eq!(
            declined(
                &json!({"suspend": true}),
                Some("Suspended"),
                FieldEdit::Restart
            ),
            "\"llama\" is suspended: resume the workload with `kubectl lockstep resume`"
        );
        assert_eq!(
            declined(&json!({}), Some("Stalled"), FieldEdit::Restart),
            "no member of \"llama\" runs: Stalled"
        );
        assert_eq!(
            declined(&json!({}), None, FieldEdit::RecordCheckpoint(at(91))),
            "checkpoint time 1970-01-01T00:01:31Z is in the future: pass the time when the state was saved"
        );
    }
}

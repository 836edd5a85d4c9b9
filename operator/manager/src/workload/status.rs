//! Writing a workload's status.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use lockstep_api::{TrainingWorkload, TrainingWorkloadStatus};
use lockstep_lifecycle::WorkloadView;
use serde_json::json;
use tokio::time::Instant;

use super::act::{FIELD_MANAGER, Failure};
use crate::merge::difference;

/// How long the written status may stay behind when nothing but counts has changed: a gang of a thousand members comes
/// up in a thousand steps, which are not a thousand writes.
const COUNTS_LAG: Duration = Duration::from_secs(1);

/// Writes statuses.
pub(super) struct StatusWriter(Client);

impl StatusWriter {
    pub fn new(write: Client) -> Self {
        Self(write)
    }

    /// Patches what differs, at the version that the view was made from; None when nothing differs, else the new version.
    pub async fn write(
        &self,
        view: &WorkloadView,
        status: &TrainingWorkloadStatus,
    ) -> Result<Option<Option<String>>, Failure> {
        let old = view.workload.status.as_ref().map_or_else(|| json!({}), |s| json!(s));
        let Some(change) = difference(&old, &json!(status)) else { return Ok(None) };
        let version = view.workload.metadata.resource_version.as_deref().unwrap_or_default();
        let patch = json!({"metadata": {"resourceVersion": version}, "status": change});
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let api: Api<TrainingWorkload> = Api::namespaced(self.0.clone(), view.namespace());
        match api.patch_status(view.name(), &params, &Patch::Merge(patch)).await {
            Ok(workload) => Ok(Some(workload.resource_version())),
            Err(error) => Err(Failure::from(&error)),
        }
    }
}

/// How long to wait before this status is written, where only counts differ from the one that was written lately.
pub(super) fn put_off(
    view: &WorkloadView,
    status: &TrainingWorkloadStatus,
    written: Option<Instant>,
    now: Instant,
) -> Option<Duration> {
    let left = (written? + COUNTS_LAG).checked_duration_since(now).filter(|left| !left.is_zero())?;
    let old = view.workload.status.as_ref()?;
    (old != status && without_counts(old) == without_counts(status)).then_some(left)
}

fn without_counts(status: &TrainingWorkloadStatus) -> TrainingWorkloadStatus {
    let mut status = TrainingWorkloadStatus { ready: String::new(), ..status.clone() };
    for group in &mut status.groups {
        (group.created, group.ready, group.active) = (0, 0, 0);
    }
    for condition in &mut status.conditions {
        condition.message.clear();
    }
    status
}

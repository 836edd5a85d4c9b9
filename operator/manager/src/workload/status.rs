use std::time::Duration;

use kube::{Api, Client};
use lockstep_api::{TrainingWorkload, TrainingWorkloadStatus};
use lockstep_lifecycle::WorkloadView;
use serde_json::json;
use tokio::time::Instant;

use crate::api::error::ApiError;
use crate::api::write::{Precondition, Written, patch_status};

/// How long the status may lag if only counts change: 1000 starting members must not cause 1000
/// writes.
const COUNTS_LAG: Duration = Duration::from_secs(1);

pub(super) struct StatusWriter(Client);

impl StatusWriter {
    pub fn new(write: Client) -> Self {
        Self(write)
    }

    pub async fn write(
        &self,
        view: &WorkloadView,
        status: &TrainingWorkloadStatus,
    ) -> Result<Written, ApiError> {
        let read = &view.workload;
        let meta = &read.metadata;
        let on = Precondition::read(meta.uid.as_deref(), meta.resource_version.as_deref())?;
        let old = read.status.as_ref().map_or_else(|| json!({}), |s| json!(s));
        let api: Api<TrainingWorkload> = Api::namespaced(self.0.clone(), view.namespace());
        match patch_status(&api, view.name(), &on, &old, &json!(status)).await? {
            Some(written) => Written::of(&written),
            None => Ok(Written::Unchanged),
        }
    }
}

/// `None`: write now, because the last write is old or other fields than counts differ.
pub(super) fn put_off(
    view: &WorkloadView,
    status: &TrainingWorkloadStatus,
    written: Option<Instant>,
    now: Instant,
) -> Option<Duration> {
    let left = (written? + COUNTS_LAG)
        .checked_duration_since(now)
        .filter(|left| !left.is_zero())?;
    let old = view.workload.status.as_ref()?;
    (old != status && without_counts(old) == without_counts(status)).then_some(left)
}

fn without_counts(status: &TrainingWorkloadStatus) -> TrainingWorkloadStatus {
    let mut status = TrainingWorkloadStatus {
        ready: String::new(),
        replicas: None,
        ..status.clone()
    };
    for group in &mut status.groups {
        (group.created, group.ready, group.active) = (0, 0, 0);
    }
    for condition in &mut status.conditions {
        condition.message.clear();
    }
    status
}

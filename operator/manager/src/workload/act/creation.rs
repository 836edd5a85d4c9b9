use chrono::{DateTime, Utc};
use kube::{Resource, ResourceExt};
use lockstep_api::names::labels;
use lockstep_lifecycle::view::{RejectedRequest, RejectionKind, Target};

use super::{ActionResult, placement_of};
use crate::api::write::Written;
use crate::index::WatchedKind;

/// An object to create.
pub(super) struct Creation<'a, K> {
    pub kind: WatchedKind,
    pub target: Target,
    pub object: &'a K,
    /// The part of the stored object that the API server has changed.
    pub altered: fn(&K, &K) -> Option<String>,
}

impl<'a, K: Resource<DynamicType = ()>> Creation<'a, K> {
    /// The API server may change the object.
    pub fn unchecked(kind: WatchedKind, target: Target, object: &'a K) -> Self {
        Self {
            kind,
            target,
            object,
            altered: |_, _| None,
        }
    }

    pub fn stored_as(self, stored: &K, now: DateTime<Utc>) -> ActionResult {
        let version = match Written::of(stored) {
            Ok(Written::At(version)) => version,
            Ok(Written::Unchanged) => return ActionResult::Nothing,
            Err(error) => return ActionResult::Failed(error),
        };
        let Some(part) = (self.altered)(self.object, stored) else {
            return ActionResult::Accepted(self.target, self.kind, version);
        };
        let rejection = RejectedRequest {
            target: self.target,
            kind: RejectionKind::Altered,
            message: format!(
                "a webhook changed {part} of the created pod {}: exempt pods with the label {} from the webhook",
                self.object.name_any(),
                labels::WORKLOAD_UID
            ),
            at: now,
            placement: placement_of(self.object),
        };
        ActionResult::Altered(rejection, self.kind, version)
    }
}

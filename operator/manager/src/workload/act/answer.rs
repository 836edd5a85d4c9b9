//! Answers of the API server to requests, as results of actions.

use chrono::{DateTime, Utc};
use lockstep_api::ids::ResourceVersion;
use lockstep_lifecycle::view::{RejectedRequest, RejectionKind, Target};

use super::ActionResult;
use crate::api::error::{ApiError, ErrorClass};
use crate::api::write::Written;
use crate::index::WatchedKind;

pub(super) fn deleted(
    kind: WatchedKind,
    answer: Result<Option<ResourceVersion>, ApiError>,
) -> ActionResult {
    match answer {
        Ok(Some(version)) => ActionResult::Wrote(kind, version),
        Ok(None) => ActionResult::Nothing,
        Err(error) if error.is_deleted() => ActionResult::Nothing,
        Err(error) => ActionResult::Failed(error),
    }
}

pub(super) fn accepted(target: Target, kind: WatchedKind, written: Written) -> ActionResult {
    match written {
        Written::At(version) => ActionResult::Accepted(target, kind, version),
        Written::Unchanged => ActionResult::Nothing,
    }
}

/// Permanent errors are rejections, for conditions. Other errors are retried.
pub(super) fn rejected(
    target: Target,
    error: ApiError,
    placement: Option<String>,
    now: DateTime<Utc>,
) -> ActionResult {
    let kind = match error.class {
        ErrorClass::Forbidden if error.message.contains("exceeded quota") => {
            RejectionKind::QuotaExceeded
        }
        ErrorClass::Forbidden => RejectionKind::Forbidden,
        ErrorClass::Invalid => RejectionKind::Invalid,
        _ => return ActionResult::Failed(error),
    };
    ActionResult::Rejected(RejectedRequest {
        target,
        kind,
        message: error.message,
        at: now,
        placement,
    })
}

pub(super) fn changed(result: Result<Written, ApiError>) -> ActionResult {
    deleted(WatchedKind::Pod, result.map(Written::version))
}

pub(super) fn best_effort(result: Result<Written, ApiError>) -> ActionResult {
    match changed(result) {
        ActionResult::Failed(error) if error.class != ErrorClass::NotLeading => {
            ActionResult::Ignored(error.class)
        }
        result => result,
    }
}

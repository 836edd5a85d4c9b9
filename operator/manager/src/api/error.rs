//! Errors of API requests, classified by what they mean to the sender.

use std::time::Duration;

use kube::error::Status;
use lockstep_api::worded;
use lockstep_common::api_server::{ComeBack, retry_after};
use thiserror::Error;

use crate::deadline::DeadlineExceeded;
use crate::lease::NotLeading;

worded! {
    /// Meaning of a failed request to its sender. The strings are label values of metrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ErrorClass {
        /// The object has changed since it was read, or has another UID.
        Conflict = "conflict",
        AlreadyExists = "already_exists",
        NotFound = "not_found",
        /// Refused by quota, admission policy, Pod Security or RBAC.
        Forbidden = "forbidden",
        Invalid = "invalid",
        /// The server requests a retry later (429).
        Throttled = "throttled",
        /// A disruption budget does not allow the eviction.
        Budget = "budget",
        /// No response before the deadline: the effect is unknown.
        Timeout = "timeout",
        /// The server or a webhook failed this request (5xx). The effect is unknown.
        ServerError = "server_error",
        NotLeading = "not_leading",
        Other = "other",
    }
}

impl ErrorClass {
    /// True if the failure concerns this request alone: each retry can fail while other requests
    /// succeed. Without a connection, every request fails.
    pub fn is_about_request(self) -> bool {
        match self {
            Self::NotFound
            | Self::Forbidden
            | Self::Invalid
            | Self::Timeout
            | Self::ServerError => true,
            Self::Conflict
            | Self::AlreadyExists
            | Self::Throttled
            | Self::Budget
            | Self::NotLeading
            | Self::Other => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ApiError {
    pub class: ErrorClass,
    pub message: String,
    pub retry_after: Duration,
}

impl ApiError {
    pub(crate) fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
            retry_after: Duration::ZERO,
        }
    }

    /// True for a missing object or another UID.
    pub(crate) fn is_deleted(&self) -> bool {
        matches!(self.class, ErrorClass::NotFound | ErrorClass::Conflict)
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        Self {
            class: classify(&error),
            retry_after: retry_after(&error),
            message: match error {
                kube::Error::Api(status) => status.message,
                other => other.to_string(),
            },
        }
    }
}

fn classify(error: &kube::Error) -> ErrorClass {
    match error {
        kube::Error::Api(s) if s.is_already_exists() => ErrorClass::AlreadyExists,
        kube::Error::Api(s) if s.is_conflict() || names_another_uid(s) => ErrorClass::Conflict,
        kube::Error::Api(s) if s.is_not_found() => ErrorClass::NotFound,
        kube::Error::Api(s) if s.is_forbidden() => ErrorClass::Forbidden,
        // 413: the object is too large for a request to etcd.
        kube::Error::Api(s) if s.is_invalid() || s.code == 400 || s.code == 413 => {
            ErrorClass::Invalid
        }
        kube::Error::Api(s) if s.code == 429 && guarded(s) => ErrorClass::Budget,
        kube::Error::Api(s) if s.code >= 500 && s.code != 504 => ErrorClass::ServerError,
        kube::Error::Api(s) => by_code(s.code),
        kube::Error::Service(e) if e.is::<DeadlineExceeded>() => ErrorClass::Timeout,
        kube::Error::Service(e) if e.is::<NotLeading>() => ErrorClass::NotLeading,
        error => {
            ComeBack::of(error).map_or(ErrorClass::Other, |come_back| by_code(come_back.status))
        }
    }
}

fn by_code(code: u16) -> ErrorClass {
    match code {
        429 => ErrorClass::Throttled,
        504 => ErrorClass::Timeout,
        _ => ErrorClass::Other,
    }
}

/// True if a patch has an outdated UID. The server responds with 422, because `metadata.uid` is
/// immutable.
fn names_another_uid(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|d| &d.causes);
    status.is_invalid() && causes.into_iter().any(|c| c.field == "metadata.uid")
}

/// True if a disruption budget refuses an eviction. Overload has the same code, but not the cause
/// `policy/v1.DisruptionBudgetCause`.
fn guarded(status: &Status) -> bool {
    let mut causes = status.details.iter().flat_map(|d| &d.causes);
    causes.any(|cause| cause.reason == "DisruptionBudget")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn error(code: u16, reason: &str) -> ApiError {
        ApiError::from(kube::Error::Api(
            Status::failure("m", reason).with_code(code).boxed(),
        ))
    }

    #[test]
    fn an_existing_name_is_distinguished_from_a_conflict() {
        assert_eq!(error(409, "AlreadyExists").class, ErrorClass::AlreadyExists);
        assert_eq!(error(409, "Conflict").class, ErrorClass::Conflict);
        assert_eq!(error(409, "Conflict").message, "m");
    }

    #[test]
    fn server_errors_concern_their_request_but_overload_and_lost_connections_do_not() {
        for (code, reason) in [
            (500, "InternalError"),
            (503, "ServiceUnavailable"),
            (504, "Timeout"),
        ] {
            assert!(error(code, reason).class.is_about_request(), "{code}");
        }
        assert!(!error(429, "TooManyRequests").class.is_about_request());
        let lost = ApiError::from(kube::Error::Service("connection reset".into()));
        assert!(!lost.class.is_about_request());
    }

    #[test]
    fn an_object_that_is_too_large_is_invalid_and_not_of_unknown_effect() {
        let answer = error(413, "RequestEntityTooLarge");
        assert_eq!(answer.class, ErrorClass::Invalid);
    }

    #[test]
    fn a_patch_of_an_object_that_was_recreated_is_a_conflict_and_not_invalid() {
        let because = |field: &str| {
            let details = json!({"causes": [{"reason": "FieldValueInvalid",
                "message": "field is immutable", "field": field}]});
            let details = serde_json::from_value(details).unwrap();
            let status = Status::failure("m", "Invalid").with_code(422);
            ApiError::from(kube::Error::Api(status.with_details(details).boxed())).class
        };
        assert_eq!(because("metadata.uid"), ErrorClass::Conflict);
        assert_eq!(because("spec.domains"), ErrorClass::Invalid);
    }
}

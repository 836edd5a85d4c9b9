//! Refusals of the API server.

use serde_json::{Value, json};

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: u16,
    /// Reason in the API server's status.
    pub reason: &'static str,
    pub message: String,
    /// Field at fault, if the product reads it.
    pub field: Option<&'static str>,
    /// True if a disruption budget is the cause.
    pub guarded: bool,
}

impl Refused {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            field: None,
            guarded: false,
        }
    }

    pub fn not_found(what: impl std::fmt::Display) -> Self {
        Self::new(404, "NotFound", format!("{what} not found"))
    }

    /// The object has changed, or has another UID.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(409, "Conflict", message)
    }

    /// A policy or quota refuses the request.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message)
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(422, "Invalid", message)
    }

    /// A disruption budget refuses an eviction (`registry/core/pod/storage/eviction.go`).
    pub fn by_budget() -> Self {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        Self {
            guarded: true,
            ..Self::new(429, "TooManyRequests", message)
        }
    }

    /// A patch names the UID of another object. The API server reports an immutable field.
    pub(super) fn other_uid() -> Self {
        Self {
            field: Some("metadata.uid"),
            ..Self::invalid("metadata.uid: Invalid value: field is immutable")
        }
    }

    /// Body of the response.
    pub(super) fn status(&self) -> Value {
        let immutable = self.field.map(|field| {
            json!([{"reason": "FieldValueInvalid", "message": "field is immutable", "field": field}])
        });
        let guarded = self
            .guarded
            .then(|| json!([{"reason": "DisruptionBudget"}]));
        let causes = immutable.or(guarded);
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": self.reason,
            "message": self.message, "code": self.code, "details": {"causes": causes.unwrap_or(json!([]))}})
    }
}

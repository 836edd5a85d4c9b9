//! Answers of the API server that say no.

use serde_json::{Value, json};

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// HTTP status code.
    pub code: u16,
    /// The reason that the API server gives with it.
    pub reason: &'static str,
    /// The words.
    pub message: String,
    /// Field that is to blame, where the product looks at that.
    pub field: Option<&'static str>,
    /// Whether a disruption budget is the cause.
    pub guarded: bool,
}

impl Refused {
    /// A refusal.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            field: None,
            guarded: false,
        }
    }

    /// The object is not there.
    pub fn not_found(what: impl std::fmt::Display) -> Self {
        Self::new(404, "NotFound", format!("{what} not found"))
    }

    /// The object has changed meanwhile, or is another.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(409, "Conflict", message)
    }

    /// A policy or quota says no.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message)
    }

    /// The object is not valid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(422, "Invalid", message)
    }

    /// A disruption budget does not allow an eviction (`registry/core/pod/storage/eviction.go`).
    pub fn by_budget() -> Self {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        Self {
            guarded: true,
            ..Self::new(429, "TooManyRequests", message)
        }
    }

    /// A patch names the UID of another object: the API server says that the field is immutable.
    pub(super) fn other_uid() -> Self {
        Self {
            field: Some("metadata.uid"),
            ..Self::invalid("metadata.uid: Invalid value: field is immutable")
        }
    }

    /// The body of the answer.
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

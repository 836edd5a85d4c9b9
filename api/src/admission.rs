//! What the API server says when an admission policy refuses a request.

use kube::core::Status;

/// How the API server begins to say which policy refused.
const BY_POLICY: &str = "ValidatingAdmissionPolicy";

/// Whether a request was refused by the policy of this name, which an installation may have given a
/// prefix. A cluster may have policies of its own, whose refusals say nothing of ours.
pub fn refused_by_policy(status: &Status, policy: &str) -> bool {
    status.is_forbidden() && status.message.contains(BY_POLICY) && status.message.contains(policy)
}

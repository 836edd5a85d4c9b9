//! Recognizes refusals by admission policies.

use kube::core::Status;

/// Kind that the API server names in a refusal by a policy.
const BY_POLICY: &str = "ValidatingAdmissionPolicy";

/// True if the policy of this name refused the request. An installation may prefix the
/// name. Refusals by policies of the cluster itself do not count.
pub fn refused_by_policy(status: &Status, policy: &str) -> bool {
    status.is_forbidden() && status.message.contains(BY_POLICY) && status.message.contains(policy)
}

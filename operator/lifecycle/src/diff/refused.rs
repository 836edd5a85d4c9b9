//! Requests that the API server has refused.

use crate::facts::Facts;
use crate::view::Target;
use crate::wake::Wake;

/// Whether a request was refused a moment ago: it is repeated after a while, not in every pass.
pub(super) fn is_recently_refused(facts: &Facts<'_>, target: &Target, wake: &mut Wake) -> bool {
    let retry = facts.view.settings().retry;
    let mut recent = false;
    for refusal in facts.refusals(target) {
        recent |= !facts.due(refusal.at + retry).passed(wake);
    }
    recent
}

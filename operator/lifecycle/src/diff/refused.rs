use crate::facts::Facts;
use crate::view::Target;
use crate::wake::Wake;

/// True if a request was refused recently, so that it is not repeated yet.
pub(super) fn is_recently_refused(facts: &Facts<'_>, target: &Target, wake: &mut Wake) -> bool {
    let retry = facts.view.settings().retry;
    let mut recent = false;
    for refusal in facts.refusals(target) {
        recent |= !facts.due(refusal.at + retry).passed(wake);
    }
    recent
}

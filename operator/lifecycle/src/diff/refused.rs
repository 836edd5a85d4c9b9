use crate::facts::Facts;
use crate::view::Target;
use crate::wake::Wake;

/// True until the retry of a refused request is due.
pub(super) fn is_recently_refused(facts: &Facts<'_>, target: &Target, wake: &mut Wake) -> bool {
    let retry = facts.view.settings().retry;
    let mut recent = false;
    for refusal in facts.refusals(target) {
        recent |= !facts.due(refusal.at + retry).passed(wake);
    }
    recent
}

use crate::facts::Facts;
use crate::view::Target;
use crate::wake::Wake;

/// True until the retry of a rejected request is due.
pub(super) fn is_recently_rejected(facts: &Facts<'_>, target: &Target, wake: &mut Wake) -> bool {
    let retry = facts.view.settings().retry;
    let mut recent = false;
    for rejection in facts.rejections(target) {
        recent |= !facts.due(rejection.at + retry).passed(wake);
    }
    recent
}

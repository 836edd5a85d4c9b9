//! Stage 03: the ends of back-offs and of avoidances.

use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::wake::Wake;

pub(super) fn end_waits(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    let mut wake = Wake::NEVER;
    // The gang can create no pods without this object.
    let rejected = facts.rejected_object(&mut wake).is_some();
    for entry in ledger.gangs.values_mut() {
        if let Some(backoff) = &entry.backoff
            && facts.is_over(backoff, &mut wake)
            && !rejected
        {
            entry.backoff = None;
        }
        entry
            .avoid
            .retain(|_, a| !facts.due(a.until).passed(&mut wake));
    }
    wake
}

//! Stage 03: the ends of waits for other groups, of back-offs and of avoidances.

use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::waiting::dependencies_met;
use crate::wake::Wake;

/// Dependencies are checked until they are met once.
pub(super) fn end_waits(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    let mut started = Vec::new();
    for (key, entry) in &ledger.gangs {
        let gang = facts.gang(key).filter(|_| !entry.started);
        if gang.is_some_and(|g| dependencies_met(facts, ledger, g)) {
            started.push(key.clone());
        }
    }
    for key in started {
        if let Some(entry) = ledger.gangs.get_mut(&key) {
            entry.started = true;
        }
    }
    let mut wake = Wake::NEVER;
    // The gang can create no pods without this object.
    let refused = facts.refused_object(&mut wake).is_some();
    for entry in ledger.gangs.values_mut() {
        if let Some(backoff) = &entry.backoff
            && facts.is_over(backoff, &mut wake)
            && !refused
        {
            entry.backoff = None;
        }
        entry
            .avoid
            .retain(|_, a| !facts.due(a.until).passed(&mut wake));
    }
    wake
}

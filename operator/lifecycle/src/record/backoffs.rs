//! Stage 03: the ends of back-offs and of avoidances.

use crate::facts::Facts;
use crate::ledger::{Avoidance, Ledger};
use crate::moves::is_left;
use crate::nodes::NodeInfo;
use crate::wake::Wake;

pub(super) fn end_waits(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    let mut wake = Wake::NEVER;
    let avoid = facts.view.settings().avoid;
    // The gang can create no pods without this object.
    let rejected = facts.rejected_object(&mut wake).is_some();
    for entry in ledger.gangs.values_mut() {
        if let Some(backoff) = &entry.backoff
            && facts.is_over(backoff, &mut wake)
            && !rejected
        {
            entry.backoff = None;
        }
        entry.avoid.retain(|node, avoidance| {
            let info = facts.view.nodes().get(node.as_str());
            if info.is_some_and(|info| is_other(avoidance, info)) {
                return false;
            }
            let stands = avoidance.is_for_signal() && info.is_some_and(|info| is_left(info));
            let renewed_at = avoidance.until - avoid / 2;
            if stands && facts.due(renewed_at).passed(&mut wake) {
                avoidance.until = facts.now + avoid;
            }
            !facts.due(avoidance.until).passed(&mut wake)
        });
    }
    wake
}

/// True if the avoided machine was replaced, or has booted since it was announced to leave.
fn is_other(avoidance: &Avoidance, info: &NodeInfo) -> bool {
    let differs = |avoided: &str, now: &str| !avoided.is_empty() && avoided != now;
    differs(&avoidance.machine, &info.machine) || differs(&avoidance.boot, &info.boot)
}

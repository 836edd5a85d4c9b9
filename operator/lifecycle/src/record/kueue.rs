//! First of all stages: the quota that Kueue has given to the workload, or taken back.

use lockstep_api::workload::KueueStatus;

use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::view::KueueAccess;

pub(super) fn follow_quota(facts: &Facts<'_>, ledger: &mut Ledger) {
    let Some(queue) = facts.queue(ledger) else {
        ledger.kueue = None;
        return;
    };
    let before = ledger.kueue.take();
    let held = |before: Option<KueueStatus>| KueueStatus {
        queue: queue.clone(),
        admitted: false,
        // Pods of the last admission can still be replaced while a checkpoint is awaited.
        ..before.unwrap_or_default()
    };
    let keeps = |quota: &KueueStatus| {
        // What was granted stays granted while Kueue gives no answer.
        let is_read = matches!(facts.view.kueue().access, KueueAccess::Served(_));
        !facts.spec().suspend && (!is_read || facts.keeps_quota(quota))
    };
    ledger.kueue = Some(match before {
        Some(quota) if quota.admitted && keeps(&quota) => quota,
        Some(quota) if quota.admitted || facts.spec().suspend => held(Some(quota)),
        before => facts.admission(&queue).unwrap_or_else(|_| held(before)),
    });
}

//! Disruption budgets of a preemption.

use std::sync::Arc;
use std::time::Duration;

use lockstep_api::scheduling::Preemption;
use lockstep_model::Pod;

use super::limits::GuardedPods;
use super::state::Cycle;
use super::victims::VictimState;
use crate::context::Context;
use crate::gang::state::GangState;
use crate::plan::{PodRef, Step};

/// How long a permission by the API server is valid.
const DRY_RUN_HOLDS: Duration = Duration::from_secs(30);

/// Verdict of the budgets about the victims that they guard.
pub(super) enum BudgetVerdict {
    /// All victims can be evicted. They use this number of pods of each budget.
    Allowed(GuardedPods),
    /// Verdicts on pods are missing. These dry runs request them.
    NeedsDryRuns(Vec<Step>),
    /// A budget forbids the eviction of a victim.
    Denied,
}

impl Cycle<'_> {
    /// Checks budgets before the first eviction, with dry runs for guarded pods: if a budget kept a
    /// later victim, earlier evictions would be in vain. Skips gangs, whose own controllers delete
    /// their pods. Skips everything if guarded pods may be deleted.
    pub(super) fn check_budgets(
        &self,
        intent: &Preemption,
        pending: &[&VictimState],
    ) -> BudgetVerdict {
        let context = self.context;
        if intent.begun() || context.settings.delete_after.is_some() {
            return BudgetVerdict::Allowed(GuardedPods::new());
        }
        // Until then, the API server answers, or the dry run is repeated.
        let needs_dry_runs = |steps| {
            context.wake.at(context.now + context.settings.retry);
            BudgetVerdict::NeedsDryRuns(steps)
        };
        let all = guarded_pods(&context, &self.gangs, pending.iter().copied());
        for (budget, pods) in &all {
            let allowed = u32::try_from(context.budgets[*budget].allowed).unwrap_or(0);
            let spent = self.limits.spent.get(budget).copied().unwrap_or(0);
            if *pods > allowed {
                return BudgetVerdict::Denied;
            } else if *pods > allowed.saturating_sub(spent) {
                // Other preemptions use the budget. It can show their evictions late, so pods can
                // count twice.
                return needs_dry_runs(Vec::new());
            }
        }
        let pods = pending.iter().filter_map(|f| f.pod.as_ref());
        let guarded = pods.filter(|pod| context.budgets.iter().any(|b| b.guards(pod)));
        let since = intent.decided_at.max(context.ago(DRY_RUN_HOLDS));
        let mut dry_runs = Vec::new();
        for pod in guarded {
            match self.memory.may_evict(pod.uid.as_str(), since) {
                Some(true) => {}
                Some(false) => return BudgetVerdict::Denied,
                None => dry_runs.push(Step::DryRunEviction(PodRef::of(pod))),
            }
        }
        if dry_runs.is_empty() {
            BudgetVerdict::Allowed(all)
        } else {
            needs_dry_runs(dry_runs)
        }
    }
}

pub(super) fn guarded_pods<'f>(
    context: &Context<'_>,
    gangs: &[GangState],
    states: impl IntoIterator<Item = &'f VictimState>,
) -> GuardedPods {
    let mut out = GuardedPods::new();
    for victim in states.into_iter().filter(|_| !context.budgets.is_empty()) {
        let gang = victim.gang.filter(|_| victim.pod.is_none());
        let members = gang
            .map(|at| &gangs[at])
            .into_iter()
            .flat_map(GangState::all_pods);
        let occupies_node = |pod: &&Arc<Pod>| pod.bound.is_some() && pod.alive();
        for pod in victim.pod.iter().chain(members).filter(occupies_node) {
            let budgets = context.budgets.iter().enumerate();
            for (at, _) in budgets.filter(|(_, budget)| budget.guards(pod)) {
                *out.entry(at).or_default() += 1;
            }
        }
    }
    out
}

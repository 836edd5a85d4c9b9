//! Rest: the last cycle left nothing to do, and nothing has changed since that makes a difference.
//!
//! In a large cluster something changes all the time, and next to nothing of it matters to gangs:
//! pods of a few CPUs come and go on nodes of accelerators, checkpoints are declared. A cycle that
//! comes to no request is not run again for these; what it came to stands.
//!
//! What stands is who waits and who runs. The words in which a gang is told what is short may be
//! those of a while ago, so no rest is long.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_model::{AskedAmounts, Quota};

use crate::input::{GangInput, SchedulingInput};
use crate::pending::Pending;
use crate::plan::{SchedulingCycle, SchedulingPlan};
use crate::settings::SchedulerSettings;
use crate::state::GangState;

/// The longest that words may be old while something changes.
const LONGEST: TimeDelta = TimeDelta::seconds(30);

/// A cycle that left nothing to do, and what it read.
#[derive(Debug)]
pub(crate) struct Rest {
    input: SchedulingInput,
    settings: SchedulerSettings,
    asked: AskedAmounts,
    since: DateTime<Utc>,
    /// When it would come to something else although nothing changes.
    until: Option<DateTime<Utc>>,
    cycle: SchedulingCycle,
}

impl Rest {
    /// After a cycle, if it left nothing to do. `asked` is what its gangs ask for.
    pub fn after(
        cycle: &SchedulingCycle,
        input: &SchedulingInput,
        settings: &SchedulerSettings,
        asked: impl FnOnce() -> AskedAmounts,
        now: DateTime<Utc>,
    ) -> Option<Self> {
        if !cycle.plan.steps.is_empty() || !cycle.gangs.iter().all(rests) {
            return None;
        }
        let reservations = cycle
            .gangs
            .iter()
            .filter_map(|g| g.status.reservation.as_ref());
        let starts = reservations.filter_map(|r| r.starts_at.filter(|start| *start > now));
        let wake = cycle.plan.wake_after.map(|wait| later(now, wait));
        Some(Self {
            input: input.clone(),
            settings: settings.clone(),
            asked: asked(),
            since: now,
            until: starts.chain(wake).min(),
            cycle: cycle.clone(),
        })
    }

    /// The cycle of now, while it would come to the same.
    pub fn goes_on(
        &self,
        input: &SchedulingInput,
        settings: &SchedulerSettings,
        now: DateTime<Utc>,
    ) -> Option<SchedulingCycle> {
        let (then, longest) = (&self.input, self.since + LONGEST);
        let in_time = now >= self.since && self.until.is_none_or(|until| now < until);
        let unchanged = then.cluster.version() == input.cluster.version()
            && then
                .gangs
                .iter()
                .zip(&input.gangs)
                .all(|(a, b)| Arc::ptr_eq(a, b));
        let alike = in_time
            && (unchanged || now < longest)
            && self.settings == *settings
            && then.weights == input.weights
            && then.gangs.len() == input.gangs.len()
            && then.gangs.iter().zip(&input.gangs).all(|(a, b)| same(a, b))
            && quotas(then).eq(quotas(input))
            && self.asked.make_no_difference(&then.cluster, &input.cluster);
        alike.then(|| {
            let ends = self
                .until
                .into_iter()
                .chain((!unchanged).then_some(longest));
            let wait = ends
                .min()
                .map(|end| (end - now).to_std().unwrap_or_default());
            SchedulingCycle {
                plan: SchedulingPlan {
                    wake_after: wait,
                    judged: 0,
                    searches: 0,
                    ..self.cycle.plan.clone()
                },
                ..self.cycle.clone()
            }
        })
    }
}

/// Whether nothing about a gang depends on how much exactly there is of anything, or on what budgets
/// allow: no victims are being waited for, no search ended without an answer, and none would have
/// found victims beyond their budgets.
fn rests(gang: &GangState) -> bool {
    let open = matches!(
        gang.pending,
        Some(Pending::Unknown { .. } | Pending::NoVictims { guarded: 1.., .. })
    );
    gang.status.preemption.is_none() && !open
}

fn same(then: &Arc<GangInput>, now: &Arc<GangInput>) -> bool {
    Arc::ptr_eq(then, now) || (then.group.status == now.group.status && then.alike(now))
}

/// Quotas of namespaces with gangs.
fn quotas(input: &SchedulingInput) -> impl Iterator<Item = &Arc<Quota>> {
    let namespaces = input.gangs.iter().map(|g| &*g.key.namespace);
    let namespaces: HashSet<&str> = namespaces.collect();
    let quotas = input.quotas.iter();
    quotas.filter(move |quota| namespaces.contains(quota.namespace.as_str()))
}

fn later(now: DateTime<Utc>, wait: Duration) -> DateTime<Utc> {
    let wait = TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX);
    now.checked_add_signed(wait)
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

//! Members of a gang to place now. An elastic gang starts with the members that fit, and grows
//! later.
//!
//! A change of membership costs a restart. So a gang takes free capacity when it is placed, and
//! keeps its size during its start and incidents. It grows only after some time without an
//! incident, and never preempts to grow.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::member::Member;

use crate::context::Context;
use crate::gang::state::GangState;
use crate::input::hold::GangPhase;
use crate::input::members::DomainInput;

impl GangState {
    /// Chooses the members to place, if some members have nodes. The gang grows some time after its
    /// last incident, or at the first opportunity after a raise of its minimum.
    pub(crate) fn choose_members_to_place(&mut self, context: &Context<'_>) {
        let input = Arc::clone(&self.input);
        let (gang, ledger) = (&*input.gang, &input.workload.members);
        // Without nodes, all members request one; with all nodes, no member does.
        let partly = !gang.basic && self.phase() == &GangPhase::Active;
        let assigned = self.assigned.clone().filter(|a| a.len() < gang.size());
        let Some(assigned) = assigned.filter(|_| partly) else {
            return;
        };
        let completed = &ledger.completed;
        let placed = |m: &Member| assigned.contains_key(m) || completed.contains(m);
        let min_count = gang.min_count.max(0) as usize;
        let never_ran = |d: &DomainInput| d.incident.is_none() && d.healthy_since.is_none();
        if ledger.domains_in_use(gang).all(never_ran) {
            if gang.members().filter(|m| placed(m)).count() >= min_count {
                self.place_only(placed);
            }
            return;
        }
        self.place_only(|m| !ledger.absent.contains(m) || placed(m));
        let healthy: Option<Vec<DateTime<Utc>>> = ledger
            .domains_in_use(gang)
            .map(|d| d.healthy_since.filter(|_| d.incident.is_none()))
            .collect();
        let Some(healthy_since) = healthy.and_then(|all| all.into_iter().max()) else {
            return;
        };
        let has_grown = self.to_place.is_none();
        // A restart would rerun members that have succeeded.
        if !has_grown && gang.members().any(|m| completed.contains(m)) {
            return;
        }
        self.growing = true;
        if has_grown {
            return;
        }
        // Below its minimum, the gang grows without delay, because `replicas` or `minCount` was
        // raised.
        let present = gang.members().filter(|m| !ledger.absent.contains(*m));
        let delay = TimeDelta::from_std(context.settings.grow_after).unwrap_or(TimeDelta::MAX);
        let grows_at = if present.count() < min_count {
            healthy_since
        } else {
            healthy_since + delay
        };
        if context.now >= grows_at {
            self.to_place = None;
        } else {
            context.wake.at(grows_at);
        }
    }

    fn place_only(&mut self, is_chosen: impl Fn(&Member) -> bool) {
        let gang = &self.input.gang;
        let all = gang.members().all(&is_chosen);
        self.to_place = (!all).then(|| gang.members().filter(|m| is_chosen(m)).cloned().collect());
    }
}

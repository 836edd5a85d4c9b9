//! Replacements of single pods, while the other members of their domain continue to run.
//!
//! A replacement can open during an incident of the domain. An incident that opens later supersedes
//! it.

use std::collections::BTreeSet;
use std::mem::take;

use lockstep_api::member::{Member, MemberSet};
use lockstep_api::workload::CauseKind;

use super::domain::{Consequence, DomainPass};
use super::policy::Response;
use super::restart_budget::refund_charge;
use crate::ledger::OpenReplacement;
use crate::pods::ContainerView;

impl DomainPass<'_> {
    /// Replaces pods after failures. Returns a consequence instead if the budget is spent.
    pub(super) fn replace_pods(&mut self, response: Response) -> Result<(), Consequence> {
        let open = self.incident().cloned();
        let charged = self.charge(&response, open.as_ref(), self.tries().counted)?;
        self.open_replacement(response, charged);
        Ok(())
    }

    /// Concurrent replacements share one entry: the new one takes over the members that have no new
    /// pod yet.
    pub(super) fn open_replacement(&mut self, mut response: Response, charged: bool) {
        let (facts, key) = (self.facts, self.key());
        let owed = self.owed_by_replacement();
        let (after, not_before) = response.back_off(facts, self.tries());
        let before = self.ledger.close_replacement(facts, key, false);
        let mut replacement = OpenReplacement {
            cause: response.cause,
            counted: charged,
            members: MemberSet::default(),
            old_pods: before.map(|r| r.old_pods).unwrap_or_default(),
            not_before,
            detected_at: facts.now,
        };
        replacement.replace_members(facts, response.replace);
        replacement.replace_members(facts, owed);
        self.avoid_nodes(response.avoid);
        self.ledger.open_replacement(key, replacement, after);
    }

    /// An open incident does not wait for these members any longer: their replacement continues
    /// beside it.
    pub(super) fn continue_without(&mut self, members: BTreeSet<Member>) {
        let facts = self.facts;
        let domain = self.entry_mut();
        let Some(incident) = &domain.incident else {
            return;
        };
        let replacement = domain.replacement.get_or_insert_with(|| OpenReplacement {
            cause: incident.cause.clone(),
            counted: false,
            members: MemberSet::default(),
            old_pods: BTreeSet::new(),
            not_before: None,
            detected_at: incident.detected_at,
        });
        for member in members {
            let pods = facts.pods_of(&member).iter();
            let old = pods.filter(|pod| incident.replaces_pod(pod));
            replacement.old_pods.extend(old.map(|pod| pod.uid.clone()));
            replacement.members.insert(member);
        }
    }

    /// If a lost node returns before its members got other nodes, their pods continue. If no pod
    /// remains to be replaced, the charge is refunded.
    pub(super) fn keep_returned_pods(&mut self) {
        let (facts, key) = (self.facts, self.key());
        let replacement = self
            .entry()
            .replacement
            .clone()
            .filter(|r| r.cause.kind == CauseKind::NodeLost);
        let gang = self.ledger.gang(&self.scope.gang.key);
        let (Some(mut replacement), Some(gang)) = (replacement, gang) else {
            return;
        };
        let detected_at = replacement.detected_at;
        let has_returned = |member: &&Member| {
            facts.pods_of(member).last().is_some_and(|pod| {
                let since = facts
                    .trainer(member, pod)
                    .and_then(ContainerView::running_since);
                let node = pod.node.as_deref();
                !pod.terminating()
                    && facts.running(member, pod)
                    && since.is_some_and(|since| since < detected_at)
                    && node.is_some_and(|node| facts.usable(gang, node))
            })
        };
        let replaced = replacement.members.iter();
        let returned: BTreeSet<Member> = replaced.filter(has_returned).cloned().collect();
        if returned.is_empty() {
            return;
        }
        for pod in returned.iter().flat_map(|m| facts.pods_of(m)) {
            replacement.old_pods.remove(&pod.uid);
        }
        let left = replacement
            .members
            .iter()
            .filter(|m| !returned.contains(*m));
        replacement.members = left.cloned().collect();
        if replacement.members.is_empty() && take(&mut replacement.counted) {
            refund_charge(self.ledger, key, detected_at);
        }
        self.entry_mut().replacement = Some(replacement);
    }

    fn owed_by_replacement(&self) -> Vec<Member> {
        let domain = self.entry();
        let replaced = domain.replacement.iter().flat_map(|r| r.members.iter());
        let missing = replaced.filter(|m| self.facts.current(domain, m).is_none());
        missing.cloned().collect()
    }
}

use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::ids::DomainKey;
use lockstep_api::member::Member;
use lockstep_api::membership::Membership;

use crate::facts::{Facts, NO_NODES};
use crate::gangs::AssignedNodes;
use crate::ledger::Ledger;

/// A domain with its gang and the members that should run.
pub(crate) struct DomainScope<'s> {
    pub gang: &'s Gang,
    pub domain: &'s Domain,
    pub all: Vec<&'s Member>,
    pub unfinished: Vec<&'s Member>,
    pub assigned: &'s AssignedNodes,
}

/// What a domain's failures cause beyond a restart of the domain.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Consequence {
    ReleaseGang(&'static str, String),
    FailWorkload(&'static str, String),
}

impl<'s> DomainScope<'s> {
    pub fn placed(
        facts: &'s Facts<'s>,
        ledger: &Ledger,
        membership: &Membership<'_>,
        gang: &'s Gang,
        domain: &'s Domain,
    ) -> Self {
        let assigned = facts.assigned_nodes(&gang.key);
        let mut all = Vec::new();
        for member in &domain.members {
            // Members of Basic groups run independently. A degrading gang continues without members
            // that have no capacity.
            let runs = if gang.basic || (gang.degrades() && membership.contains(member)) {
                assigned.contains_key(member)
            } else {
                membership.contains(member)
            };
            if runs {
                all.push(member);
            }
        }
        let unfinished = all
            .iter()
            .copied()
            .filter(|m| !ledger.completed.contains(*m))
            .collect();
        Self {
            gang,
            domain,
            all,
            unfinished,
            assigned,
        }
    }

    /// Ignores nodes, and excludes members that do not run again.
    pub fn of_restart(
        facts: &'s Facts<'s>,
        ledger: &Ledger,
        membership: &Membership<'_>,
        gang: &'s Gang,
        domain: &'s Domain,
    ) -> Self {
        let done = ledger.done_members(facts.spec(), gang, domain);
        let mut all = Vec::new();
        for member in &domain.members {
            if membership.contains(member) && !done.contains(member) {
                all.push(member);
            }
        }
        Self {
            gang,
            domain,
            unfinished: all.clone(),
            all,
            assigned: &NO_NODES,
        }
    }

    pub fn key(&self) -> &'s DomainKey {
        &self.domain.key
    }
}

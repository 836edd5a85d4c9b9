//! One restart domain with its gang, and the consequences of its failures for the workload.

use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::ids::DomainKey;
use lockstep_api::member::Member;
use lockstep_api::membership::Membership;

use crate::facts::{AssignedNodes, Facts};
use crate::ledger::Ledger;

/// A restart domain with its gang and the members that should run.
pub(crate) struct DomainScope<'s> {
    pub gang: &'s Gang,
    pub domain: &'s Domain,
    pub all: Vec<&'s Member>,
    /// Members of `all` that have not succeeded.
    pub unfinished: Vec<&'s Member>,
    /// Nodes assigned to them.
    pub assigned: &'s AssignedNodes<'s>,
}

/// Consequence of a domain's failures for the workload, beyond a restart of the domain.
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
            // Members of a basic group run independently, as capacity allows. A gang that degrades
            // continues without members that have no capacity.
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

    /// The scope of a restart, independent of nodes. It excludes members that do not run again.
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
            assigned: facts.nowhere(),
        }
    }

    pub fn key(&self) -> &'s DomainKey {
        &self.domain.key
    }
}

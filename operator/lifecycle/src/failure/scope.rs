//! One restart domain with its gang, and what its failures may ask of the workload.

use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::ids::DomainKey;
use lockstep_api::member::Member;
use lockstep_api::membership::Membership;

use crate::facts::{AssignedNodes, Facts};
use crate::ledger::Ledger;

/// A restart domain with its gang and the members that are to run.
pub(crate) struct DomainScope<'s> {
    pub gang: &'s Gang,
    pub domain: &'s Domain,
    /// The members that run together.
    pub all: Vec<&'s Member>,
    /// Those of them that have not succeeded.
    pub unfinished: Vec<&'s Member>,
    /// Where they are to run.
    pub assigned: &'s AssignedNodes<'s>,
}

/// What the failures of one domain ask of the workload, beyond a restart of the domain.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Consequence {
    /// The gang releases its placement and queues again.
    ReleaseGang(&'static str, String),
    /// The workload fails.
    FailWorkload(&'static str, String),
}

impl<'s> DomainScope<'s> {
    /// A domain whose gang is placed.
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
            // Members of a basic group run each by itself, whichever has capacity; those of a gang that
            // degrades go on without one that has none.
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

    /// The scope of a restart that has nothing to do with where members run. Members that never run
    /// again have no part in it.
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

    /// Key of the domain.
    pub fn key(&self) -> &'s DomainKey {
        &self.domain.key
    }
}

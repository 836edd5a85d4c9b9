//! Orders after the end of a workload: the supervisor of a failed member exits with the code of its
//! child, so that the pod fails and its log stays.

use lockstep_api::RestartOrderSpec;
use lockstep_api::gangs::Domain;
use lockstep_api::member::Member;

use super::barrier::with_alone;
use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::pods::{PodView, bare_id};

/// A pod whose training process has failed while its container lives on.
pub(crate) struct FailedPod<'a> {
    pub pod: &'a PodView,
    domain: &'a Domain,
    member: &'a Member,
    /// Restarts of the container.
    restarts: i32,
}

/// The pods in which the process of the last released attempt has failed.
pub(crate) fn failed_pods<'s>(facts: &'s Facts<'_>, ledger: &Ledger) -> Vec<FailedPod<'s>> {
    let domains = facts.gangs.iter().flat_map(|g| &g.domains);
    let members = domains.flat_map(|d| d.members.iter().map(move |m| (d, m)));
    members
        .filter_map(|(domain, member)| failed_pod(facts, ledger, domain, member))
        .collect()
}

fn failed_pod<'s>(
    facts: &'s Facts<'_>,
    ledger: &Ledger,
    domain: &'s Domain,
    member: &'s Member,
) -> Option<FailedPod<'s>> {
    let released = facts.order(&domain.key)?.released_attempt;
    let pod = facts.current(ledger.domain(&domain.key)?, member)?;
    let container = facts.trainer(member, pod).filter(|c| c.running())?;
    let id = container.runtime_id().map(bare_id)?;
    let mut reports = facts.reports(member, pod).filter(|r| r.supervised);
    let failed =
        reports.find(|r| r.container_id == id && r.exit_code != 0 && r.attempt >= released)?;
    (!pod.terminal() && !pod.terminating()).then_some(FailedPod {
        pod,
        domain,
        member,
        restarts: failed.restarts,
    })
}

/// The orders as they are, with the failed members on their own.
pub(crate) fn with_exits(present: &RestartOrderSpec, failed: &[FailedPod<'_>]) -> RestartOrderSpec {
    let mut wanted = present.clone();
    for order in &mut wanted.domains {
        let of_domain = failed.iter().filter(|f| f.domain.key == *order.key);
        order.alone = with_alone(order, of_domain.map(|f| (f.member, f.restarts)));
    }
    wanted
}

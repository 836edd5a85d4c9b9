//! The end of a workload: running pods end, and pods of the failure keep their logs. The restart
//! order ends with the last pod.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use lockstep_api::gangs::Domain;
use lockstep_api::member::Member;

use super::removal::delete;
use crate::facts::Facts;
use crate::ledger::{Ledger, Outcome};
use crate::plan::{Action, Surplus};
use crate::pods::{PodView, bare_id};
use crate::wake::Wake;

/// Deletes running pods, and the workload after its time to live. Ended pods stay for their logs.
/// Pods of failed members get a deadline, by which their kubelets end them; supervisors or restarts
/// would keep them running. If the API server accepts no deadline within `recreateGraceSeconds`,
/// these pods are deleted.
pub(super) fn clean_up(facts: &Facts<'_>, ledger: &Ledger, out: &mut Vec<Action>, wake: &mut Wake) {
    let live = facts.pods().filter(|p| !p.has_stopped());
    let failed = failed_pods(facts, ledger);
    let (failed, others): (Vec<&PodView>, Vec<&PodView>) = live
        .filter(|p| !(p.terminating() || p.ends_at_once && p.node.is_some()))
        .partition(|p| failed.contains(p.name.as_str()));
    out.extend(others.into_iter().filter_map(delete));
    let grace = TimeDelta::seconds(facts.spec().failure_policy.recreate_grace_seconds);
    let ended_at = ledger.ended.as_ref().map_or(facts.now, |e| e.at);
    if !failed.is_empty() {
        let is_over = facts.due(ended_at + grace).passed(wake);
        let remove = |pod| if is_over { delete(pod) } else { Some(end(pod)) };
        out.extend(failed.into_iter().filter_map(remove));
    }
    out.extend(delete_order(facts));
    let ttl = facts.spec().ttl_seconds_after_finished;
    let completed_at = ledger.ended.as_ref().and_then(|e| e.completed_at);
    if let (Some(ttl), Some(end)) = (ttl, completed_at)
        && facts.due(end + TimeDelta::seconds(ttl)).passed(wake)
    {
        out.push(Action::DeleteWorkload {
            uid: facts.view.id().uid.clone(),
        });
    }
}

/// Agents keep all orders. Until all pods are terminal, supervisors wait for `completedAttempt`.
fn delete_order(facts: &Facts<'_>) -> Option<Action> {
    let order = facts.view.order().filter(|order| order.owned)?;
    facts
        .pods()
        .all(PodView::terminal)
        .then(|| Action::DeleteSurplus {
            surplus: Surplus::RestartOrder,
            name: facts.view.name().to_owned(),
            uid: order.uid.clone(),
        })
}

fn end(pod: &PodView) -> Action {
    Action::EndPod {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    }
}

/// Pods of failures without recovery, and pods whose training process failed at the last released
/// attempt while the container runs.
fn failed_pods<'s>(facts: &'s Facts<'_>, ledger: &'s Ledger) -> BTreeSet<&'s str> {
    let is_failure = ledger.ended.as_ref().map(|e| e.outcome) == Some(Outcome::Failed);
    let history = ledger.history.iter().filter(|_| is_failure);
    let causes = history
        .take_while(|h| h.recovered_at.is_none())
        .map(|h| h.cause.pod.as_str());
    let domains = facts.gangs.iter().flat_map(|g| &g.domains);
    let members = domains.flat_map(|d| d.members.iter().map(move |m| (d, m)));
    let processes = members.filter_map(|(d, m)| failed_process(facts, ledger, d, m));
    causes.chain(processes.map(|p| p.name.as_str())).collect()
}

fn failed_process<'s>(
    facts: &'s Facts<'_>,
    ledger: &Ledger,
    domain: &Domain,
    member: &Member,
) -> Option<&'s PodView> {
    let released = facts.order(&domain.key)?.released_attempt;
    let pod = facts.current(ledger.domain(&domain.key)?, member)?;
    let container = facts.trainer(member, pod).filter(|c| c.running())?;
    let id = container.runtime_id().map(bare_id)?;
    let observed = facts.observe(member, pod);
    let mut reports = observed.training_reports().filter(|r| r.supervised);
    let failed = reports.any(|r| r.container_id == id && r.exit_code != 0 && r.attempt >= released);
    failed.then_some(pod)
}

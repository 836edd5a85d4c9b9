//! Differences between ledger and observed objects, as requests.
//!
//! | module | requests |
//! | --- | --- |
//! | [`native_groups`] | native groups of `scheduling.k8s.io` |
//! | [`objects`] | Service, Workload, pod groups, `RestartOrder`, dry runs |
//! | [`pods`] | pods of one gang: deletions, gates, creations |
//! | [`kueue`] | the Kueue Workload |
//! | [`end`] | after the end of the workload |
//! | [`removal`] | deletions of pods, and exceptions |
//! | [`rejected`] | recently rejected requests |

mod end;
mod kueue;
mod native_groups;
mod objects;
mod pods;
mod rejected;
mod removal;

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use lockstep_api::gangs::Gang;
use lockstep_api::member::Member;

use crate::facts::{Facts, PlacementState};
use crate::ledger::{GangLedger, Ledger};
use crate::objects::hash::{names_other_spec, spec_hash};
use crate::plan::Action;
use crate::wake::Wake;
use native_groups::NativeGroups;
use objects::DryRunFor;
use pods::{Creations, GangPods};
use removal::{delete, delete_awaited, recreate_grace, stays_when_released};

/// All due actions in order, and the time of the next action without a change.
pub(crate) fn actions(facts: &Facts<'_>, ledger: &Ledger) -> (Vec<Action>, Wake) {
    let mut out = Vec::new();
    let mut wake = Wake::NEVER;
    if ledger.ended.is_some() {
        NativeGroups::default().delete_surplus(facts, &mut out);
        out.extend(objects::pass_on_stops(facts));
        end::clean_up(facts, ledger, &mut out, &mut wake);
    } else if ledger.is_suspended(facts.spec()) && !ledger.awaits_reply() {
        out.extend(objects::pass_on_stops(facts));
        let leaving = facts.pods().filter(|p| !stays_when_released(ledger, p));
        out.extend(leaving.filter_map(delete));
        NativeGroups::default().delete_surplus(facts, &mut out);
    } else if ledger.applied.is_none() {
        out.extend(objects::dry_run(facts, DryRunFor::Pods, &mut wake));
    } else {
        run(facts, ledger, &mut out, &mut wake);
    }
    kueue::actions(facts, ledger, &mut out, &mut wake);
    out.sort_by_key(Action::rank);
    (out, wake)
}

fn run(facts: &Facts<'_>, ledger: &Ledger, out: &mut Vec<Action>, wake: &mut Wake) {
    let applied = ledger.applied.as_ref().map_or("", |a| &a.spec_hash);
    if applied != spec_hash(facts.spec()) {
        // The spec was edited while suspended and is invalid. The ledger describes the running
        // pods.
        out.extend(objects::dry_run(facts, DryRunFor::Pods, wake));
        return;
    }
    let membership = ledger.membership(facts.spec());
    let complete = objects::ensure_all(facts, ledger, &membership, out, wake);
    let native = NativeGroups::desired(facts, ledger, &membership);
    let complete = native.ensure(facts, out, wake) && complete;
    if !ledger.awaits_reply() {
        delete_surplus(facts, applied, out);
    }
    let mut creates = Creations::default();
    let mut waits = false;
    let mut retries = Vec::new();
    for gang in &facts.gangs {
        let Some(entry) = ledger.gang(&gang.key) else {
            continue;
        };
        waits |= needs_nodes(facts, ledger, gang, entry);
        retries.extend(retry_time(facts, entry, wake));
        let placement = match facts.placement_state(&gang.key, entry) {
            PlacementState::Placed(placement) => Some(placement),
            PlacementState::Unplaced if facts.native_placement(ledger, gang) == Some(Ok(())) => {
                None
            }
            PlacementState::Unplaced => {
                delete_unbound(facts, gang, entry.released.as_deref(), out);
                continue;
            }
            PlacementState::Released => {
                vacate(facts, ledger, gang, out);
                continue;
            }
        };
        let pods = GangPods {
            facts,
            ledger,
            gang,
            entry,
            membership: &membership,
            placement,
            native_group: native.name(&gang.key),
        };
        pods.repair(out, wake);
        if complete && entry.may_have_pods() {
            pods.create(&mut creates, wake);
        }
    }
    // The API server determines which restart rules it keeps and how it admits pods. Pods are
    // dry-run once per spec, and again periodically.
    let mut dry_run = None;
    if !creates.actions.is_empty() {
        dry_run = objects::dry_run(facts, DryRunFor::Pods, wake);
        if dry_run.is_none() {
            out.extend(creates.actions);
        }
    } else if waits {
        dry_run = objects::dry_run(facts, DryRunFor::Placement, wake);
    }
    // One request serves every purpose. A retry requires its success.
    if let Some(since) = retries.into_iter().max() {
        dry_run = objects::dry_run(facts, DryRunFor::Retry { since }, wake).or(dry_run);
    }
    out.extend(dry_run);
}

/// Time since which the API server must answer a dry run before this gang requests capacity again.
fn retry_time(facts: &Facts<'_>, entry: &GangLedger, wake: &mut Wake) -> Option<DateTime<Utc>> {
    let backoff = entry.backoff.as_ref()?;
    let waits = facts.due(backoff.until).passed(wake) && !facts.is_over(backoff, wake);
    waits.then_some(backoff.until)
}

fn needs_nodes(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang, entry: &GangLedger) -> bool {
    if !entry.started || entry.backoff.is_some() {
        return false;
    }
    match facts.placement_state(&gang.key, entry) {
        PlacementState::Unplaced => true,
        PlacementState::Released => false,
        PlacementState::Placed(_) => {
            let assigned = facts.assigned_nodes(&gang.key);
            let mut unfinished = gang.members().filter(|m| !ledger.completed.contains(*m));
            unfinished.any(|m| {
                assigned
                    .get(m)
                    .is_none_or(|n| !facts.usable(entry, n.as_str()))
            })
        }
    }
}

/// Deletes pods of removed members and of other specs.
fn delete_surplus(facts: &Facts<'_>, applied: &str, out: &mut Vec<Action>) {
    let members: BTreeSet<&Member> = facts.gangs.iter().flat_map(Gang::members).collect();
    for pod in facts.pods() {
        let is_member = pod
            .identity
            .member
            .as_ref()
            .is_some_and(|m| members.contains(m));
        if names_other_spec(&pod.identity.spec_hash, applied) || !is_member {
            out.extend(delete(pod));
        }
    }
}

/// Deletes unbound pods of a withdrawn placement.
fn delete_unbound(facts: &Facts<'_>, gang: &Gang, released: Option<&str>, out: &mut Vec<Action>) {
    for pod in gang.members().flat_map(|m| facts.pods_of(m)) {
        if pod.node.is_none() || released == Some(&pod.identity.placement) {
            out.extend(delete(pod));
        }
    }
}

/// A gang that backs off has failed, so its grace periods are shortened.
fn vacate(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang, out: &mut Vec<Action>) {
    let entry = ledger.gang(&gang.key);
    let longest = recreate_grace(facts).filter(|_| entry.is_some_and(|e| e.backoff.is_some()));
    let preemptor = facts.preemptor(&gang.key);
    for pod in gang.members().flat_map(|m| facts.pods_of(m)) {
        if stays_when_released(ledger, pod) {
            continue;
        }
        if let Some(message) = preemptor {
            out.extend(removal::mark_disrupted(pod, message));
        }
        out.extend(delete_awaited(facts, pod, longest));
    }
}

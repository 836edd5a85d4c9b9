//! Changes of the spec: first application, suspension, edits, resizing, requested restarts.

use chrono::Duration;
use lockstep_api::workload::{AppliedSpec, Cause, CauseKind, DomainStatus, GangStatus, TrainingWorkloadStatus};

use super::context::{Ctx, Room};
use super::{incident, rooms, worlds};
use crate::build::spec_hash;
use crate::view::Priority;

/// Follows the spec.
pub(super) fn follow_spec(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    if ctx.view.spec().suspend {
        suspend(ctx, ledger);
        return;
    }
    let Some(applied) = ledger.applied.clone() else {
        if valid(ctx) {
            apply(ctx, ledger);
        }
        return;
    };
    if ledger.start_time.is_none() {
        ledger.start_time = Some(ctx.now);
    }
    let wanted = wanted(ctx);
    if applied.spec_hash != wanted.spec_hash {
        if valid(ctx) {
            give_everything_back(ctx, ledger);
            apply(ctx, ledger);
        }
        return;
    }
    if applied == wanted {
        return;
    }
    ledger.applied = Some(wanted);
    lay_out(ctx, ledger);
    if applied.replicas != replicas(ctx) {
        worlds::resize(ctx, ledger, &applied.replicas);
    }
    if applied.restart_nonce != ctx.view.spec().restart_nonce {
        incident::request(ctx, ledger, &asked(ctx, CauseKind::Requested, "restartNonce was raised"));
    }
}

/// Whether the priority class exists and the API server accepts the pods of this spec.
fn valid(ctx: &Ctx<'_>) -> bool {
    let hash = spec_hash(ctx.view.spec());
    let accepted = ctx.view.dry_run.as_ref().is_some_and(|d| d.spec_hash == hash && d.invalid.is_none());
    accepted && ctx.view.priority != Priority::Unknown
}

fn wanted(ctx: &Ctx<'_>) -> AppliedSpec {
    AppliedSpec {
        spec_hash: spec_hash(ctx.view.spec()),
        restart_nonce: ctx.view.spec().restart_nonce,
        replicas: replicas(ctx),
    }
}

fn replicas(ctx: &Ctx<'_>) -> Vec<i32> {
    ctx.view.spec().groups.iter().map(|g| g.replicas).collect()
}

fn apply(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    ledger.applied = Some(wanted(ctx));
    ledger.start_time.get_or_insert(ctx.now);
    lay_out(ctx, ledger);
}

/// Brings the entries of gangs and domains in line with the spec. A new domain starts at the highest epoch there is, so
/// that the epoch of the workload never goes back.
fn lay_out(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    let epoch = ledger.domains.iter().map(|d| d.epoch).chain([ledger.epoch, 1]).max().unwrap_or(1);
    let old_gangs = std::mem::take(&mut ledger.gangs);
    let old_domains = std::mem::take(&mut ledger.domains);
    for gang in &ctx.gangs {
        let known = old_gangs.iter().find(|g| g.key == gang.key).cloned();
        ledger.gangs.push(known.unwrap_or_else(|| GangStatus { key: gang.key.clone(), ..GangStatus::default() }));
        for domain in &gang.domains {
            let known = old_domains.iter().find(|d| d.key == domain.key).cloned();
            let new = || DomainStatus { key: domain.key.clone(), epoch, ..DomainStatus::default() };
            ledger.domains.push(known.unwrap_or_else(new));
        }
    }
}

fn suspend(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    give_everything_back(ctx, ledger);
    for gang in &mut ledger.gangs {
        gang.backoff = None;
        gang.attempts = 0;
    }
    if let Some(since) = ledger.start_time.take() {
        ledger.active_seconds += (ctx.now - since).max(Duration::zero()).num_seconds();
    }
}

fn give_everything_back(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    let held: Vec<String> =
        ledger.gangs.iter().filter(|g| matches!(ctx.room(g), Room::Held(_))).map(|g| g.key.clone()).collect();
    for key in held {
        rooms::give_back(ctx, ledger, &key, None);
    }
}

/// The cause of a restart that is nobody's failure.
pub(super) fn asked(ctx: &Ctx<'_>, kind: CauseKind, message: &str) -> Cause {
    Cause {
        kind,
        pod: String::new(),
        node: String::new(),
        container: String::new(),
        exit_code: None,
        reason: format!("{kind:?}"),
        message: message.into(),
        rule: String::new(),
        time: ctx.now,
    }
}

//! Reads the Lease, executes the step of [`super::decide`], and publishes the leadership.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lockstep_api::ids::ResourceVersion;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{ElectionStep, HeldLease, Leadership, Observed, Timing, decide};
use crate::clock::Clock;
use crate::deadline::{DeadlineExceeded, in_time};
use crate::time_conversion::to_jiff;

/// The election is lost. The process must exit, so that it stops acting.
#[derive(Debug, Error)]
#[error("leadership lost: {0}")]
pub struct LeaseLost(String);

pub struct Candidate<'a> {
    /// Client without retries, and without the fence of other writes.
    pub client: Client,
    pub namespace: String,
    pub name: String,
    pub identity: String,
    pub timing: Timing,
    pub clock: &'a dyn Clock,
}

#[derive(Default)]
struct ElectionState {
    observed: Option<Observed>,
    held: Option<HeldLease>,
}

impl Candidate<'_> {
    /// Takes part in the election until `release` is cancelled, then releases the lease.
    pub async fn run(
        self,
        leadership: watch::Sender<Option<Leadership>>,
        release: CancellationToken,
    ) -> Result<(), LeaseLost> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut state = ElectionState::default();
        loop {
            let pause = match self.step(&api, &mut state, &leadership).await {
                Ok(pause) => pause,
                Err(lost) => {
                    leadership.send_replace(None);
                    return Err(lost);
                }
            };
            tokio::select! {
                biased;
                () = release.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        leadership.send_replace(None);
        if let (Some(_), Some(last)) = (
            state.held,
            state.observed.filter(|o| o.holder == self.identity),
        ) {
            self.release(&api, &last).await;
        }
        Ok(())
    }

    async fn step(
        &self,
        api: &Api<Lease>,
        state: &mut ElectionState,
        leadership: &watch::Sender<Option<Leadership>>,
    ) -> Result<Duration, LeaseLost> {
        // A holder knows the object from its own writes.
        if state.held.is_none()
            && let Err(error) = self.refresh(api, state).await
        {
            warn!(%error, "cannot read the lease");
            return Ok(self.timing.retry);
        }
        let now = self.clock.monotonic();
        let next = self.next(state, now)?;
        if let ElectionStep::Wait(pause) = next {
            return Ok(pause);
        }
        match self.write(api, state.observed.as_ref(), next).await {
            Ok(lease) => {
                observe(
                    &mut state.observed,
                    Some(&lease),
                    &self.timing,
                    self.clock.monotonic(),
                );
                let term = state.observed.as_ref().map_or(0, |o| o.transitions);
                match state.held {
                    None => info!(identity = %self.identity, term, "leading"),
                    Some(held) if self.clock.monotonic() >= held.renewed + self.timing.renew => {
                        info!(identity = %self.identity, term, "leading again: the lease is renewed");
                    }
                    Some(_) => {}
                }
                state.held = Some(HeldLease { term, renewed: now });
                leadership.send_replace(Some(Leadership {
                    term,
                    valid_until: now + self.timing.renew,
                }));
                Ok(Duration::ZERO)
            }
            Err(error) => {
                warn!(%error, ?next, "cannot write the lease");
                // After a conflict, the holder reads whether it still holds the lease. After
                // another failure it retries, and does not act past the renew deadline.
                let refreshed = self.refresh(api, state).await;
                if let Err(error) = &refreshed {
                    warn!(%error, "cannot read the lease");
                }
                // A holder that finds another holder steps down here.
                self.next(state, self.clock.monotonic())?;
                // The wait for the response replaces a pause.
                let waited = refreshed.is_ok() && matches!(error, LeaseError::Late(_));
                Ok(if waited {
                    Duration::ZERO
                } else {
                    self.timing.retry
                })
            }
        }
    }

    fn next(&self, state: &ElectionState, now: Instant) -> Result<ElectionStep, LeaseLost> {
        let (observed, held) = (state.observed.as_ref(), state.held.as_ref());
        match decide(&self.identity, observed, held, &self.timing, now) {
            ElectionStep::StepDown => Err(LeaseLost(
                "taken by another, deleted, or not renewed for long".into(),
            )),
            step => Ok(step),
        }
    }

    async fn refresh(&self, api: &Api<Lease>, state: &mut ElectionState) -> Result<(), LeaseError> {
        let lease = in_time(self.timing.renew / 2, api.get_opt(&self.name)).await??;
        observe(
            &mut state.observed,
            lease.as_ref(),
            &self.timing,
            self.clock.monotonic(),
        );
        Ok(())
    }

    async fn write(
        &self,
        api: &Api<Lease>,
        observed: Option<&Observed>,
        step: ElectionStep,
    ) -> Result<Lease, LeaseError> {
        let deadline = self.timing.renew / 2;
        let now = MicroTime(to_jiff(self.clock.wall()));
        let seconds = i32::try_from(self.timing.lease.as_secs())
            .unwrap_or(i32::MAX)
            .max(1);
        let Some(current) = observed.filter(|o| !o.deleted) else {
            let spec = LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(seconds),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                lease_transitions: Some(0),
                ..LeaseSpec::default()
            };
            let metadata = ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            };
            let lease = Lease {
                metadata,
                spec: Some(spec),
            };
            let params = PostParams::default();
            return Ok(in_time(deadline, api.create(&params, &lease)).await??);
        };
        let mut spec = json!({"renewTime": now});
        if step == ElectionStep::Acquire {
            spec = json!({
                "holderIdentity": self.identity, "leaseDurationSeconds": seconds, "acquireTime": now, "renewTime": now,
                "leaseTransitions": current.transitions.saturating_add(1),
            });
        }
        let version = current.resource_version.as_str();
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": spec});
        self.patch(api, deadline, &patch).await
    }

    async fn patch(
        &self,
        api: &Api<Lease>,
        deadline: Duration,
        patch: &Value,
    ) -> Result<Lease, LeaseError> {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        Ok(in_time(deadline, api.patch(&self.name, &params, &patch)).await??)
    }

    /// Lets the next candidate take the lease at once. After a failure, the candidate waits for the
    /// lease duration.
    async fn release(&self, api: &Api<Lease>, last: &Observed) {
        let patch = json!({
            "metadata": {"resourceVersion": last.resource_version.as_str()},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
        });
        match self.patch(api, self.timing.retry, &patch).await {
            Ok(_) => info!("lease released"),
            Err(error) => warn!(%error, "cannot release the lease"),
        }
    }
}

/// Only a change of the object changes the observation time.
fn observe(observed: &mut Option<Observed>, lease: Option<&Lease>, timing: &Timing, now: Instant) {
    let Some(lease) = lease else {
        if let Some(last) = observed.as_mut().filter(|o| !o.deleted) {
            (last.deleted, last.since) = (true, now);
        }
        return;
    };
    let Some(resource_version) = ResourceVersion::read(lease.metadata.resource_version.as_deref())
    else {
        return;
    };
    if observed
        .as_ref()
        .is_some_and(|o| o.resource_version == resource_version && !o.deleted)
    {
        return;
    }
    let spec = lease.spec.clone().unwrap_or_default();
    *observed = Some(Observed {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: spec
            .lease_duration_seconds
            .and_then(|s| u64::try_from(s).ok())
            .map_or(timing.lease, Duration::from_secs),
        transitions: spec.lease_transitions.unwrap_or_default(),
        resource_version,
        since: now,
        deleted: false,
    });
}

#[derive(Debug, Error)]
enum LeaseError {
    #[error(transparent)]
    Late(#[from] DeadlineExceeded),
    #[error(transparent)]
    Refused(#[from] kube::Error),
}

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lockstep_api::key::Key;
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_lifecycle::provisioning::{
    ProvisioningAction, ProvisioningPlan, ProvisioningSettings, plan,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::act::{ProvisioningSender, Wrote};
use crate::api::Actor;
use crate::api::clients::Clients;
use crate::api::error::{ApiError, ErrorClass};
use crate::clock::Clock;
use crate::index::{Index, OwnWrites};
use crate::lease::Tenure;
use crate::queue::RetryBackoff;

const IN_FLIGHT: usize = 16;
/// Within this time, changes are handled together.
const GATHER: Duration = Duration::from_millis(50);
/// Until the index has the last writes, at most.
const CATCH_UP: Duration = Duration::from_secs(1);
/// Time between two passes without a change, if the resync is disabled.
const INTERVAL: Duration = Duration::from_mins(10);
/// Waits after refused creations for a gang. Its deletions do not wait.
const BACKOFF: RetryBackoff = RetryBackoff {
    first: Duration::from_secs(5),
    max: Duration::from_mins(1),
};

/// Shows the demand of all gangs to the autoscaler.
pub(crate) struct Provisioner {
    index: Arc<Index>,
    clock: Arc<dyn Clock>,
    settings: ProvisioningSettings,
    sender: ProvisioningSender,
    period: Duration,
    writes: OwnWrites,
    /// Failures and next try of gangs whose creations were refused.
    refused: BTreeMap<Key, (u32, Instant)>,
}

impl Provisioner {
    /// `period`: time between two passes without a change, or zero.
    pub fn new(
        index: Arc<Index>,
        clock: Arc<dyn Clock>,
        settings: ProvisioningSettings,
        clients: &Clients,
        period: Duration,
    ) -> Self {
        Self {
            index,
            clock,
            sender: ProvisioningSender {
                actor: Actor::new(clients, IN_FLIGHT),
                namespace: settings.namespace.clone(),
                requests: None,
            },
            settings,
            period: match period {
                Duration::ZERO => INTERVAL,
                period => period,
            },
            writes: OwnWrites::default(),
            refused: BTreeMap::new(),
        }
    }

    /// Requires a complete index and leadership. Returns at once without an autoscaler. A stop
    /// finishes current writes.
    pub async fn run(mut self, mut tenure: Tenure, stop: CancellationToken) {
        if self.settings.mode == AutoscalerMode::Off {
            return;
        }
        let mut wait = Duration::ZERO;
        while self.pause(wait, &mut tenure, &stop).await {
            wait = self.pass(&stop).await;
        }
    }

    /// Decides and acts once. Returns the time until the next pass without a change.
    pub(crate) async fn pass(&mut self, stop: &CancellationToken) -> Duration {
        if !self.index.caught_up(&mut self.writes) {
            return CATCH_UP;
        }
        let view = {
            let state = self.index.read();
            self.sender.requests = state.requests_resource();
            state.provisioning_view()
        };
        let ProvisioningPlan {
            first,
            creations,
            taken,
        } = plan(&view, &self.settings);
        for key in taken {
            warn!(object = %key, "the name is taken by an object of another owner: nodes are not requested");
        }
        let failed = self.send(first, false, stop).await;
        if let Some(error) = &failed {
            warn!(%error, class = error.class.as_str(), "cannot change what is requested of the autoscaler");
        }
        let now = self.clock.monotonic();
        let waiting = |key: &Key| creations.iter().any(|(gang, _)| gang == key);
        self.refused.retain(|key, _| waiting(key));
        for (gang, actions) in creations {
            if self.refused.get(&gang).is_some_and(|(_, at)| now < *at) {
                continue;
            }
            let refused = self.send(actions, true, stop).await;
            self.note(gang, refused);
        }
        let now = self.clock.monotonic();
        let tries = self.refused.values().map(|(_, at)| *at - now);
        let retry = failed.map(|_| BACKOFF.first);
        tries.chain(retry).fold(self.period, Duration::min)
    }

    fn note(&mut self, gang: Key, refused: Option<ApiError>) {
        let Some(error) = refused else {
            self.refused.remove(&gang);
            return;
        };
        let failures = self.refused.get(&gang).map_or(1, |(n, _)| n + 1);
        let wait = BACKOFF.wait(failures).max(error.retry_after);
        warn!(object = %gang, %error, class = error.class.as_str(), wait_ms = wait.as_millis() as u64,
            "cannot request nodes");
        let at = self.clock.monotonic() + wait;
        self.refused.insert(gang, (failures, at));
    }

    /// Sends requests, also after one has failed unless each needs the one before. Returns the first
    /// failure.
    async fn send(
        &mut self,
        actions: Vec<ProvisioningAction>,
        in_order: bool,
        stop: &CancellationToken,
    ) -> Option<ApiError> {
        let (now, sender) = (self.clock.wall(), self.sender.clone());
        let requests = actions.into_iter().map(|action| sender.send(action, now));
        let mut failure = None;
        let at = self.clock.monotonic();
        let settle = |answer: Result<Wrote, ApiError>| {
            match answer {
                Ok(None) => {}
                Ok(Some((kind, version))) => self.writes.wrote(kind, &version, at),
                Err(error) => {
                    debug!(%error, class = error.class.as_str(), "request failed");
                    let lost = error.class == ErrorClass::NotLeading;
                    failure.get_or_insert(error);
                    if in_order || lost {
                        return ControlFlow::Break(());
                    }
                }
            }
            if stop.is_cancelled() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        self.sender.actor.clone().send_all(requests, settle).await;
        failure
    }

    /// Waits for a change or this time, then until this process leads. False after a stop.
    async fn pause(&self, wait: Duration, tenure: &mut Tenure, stop: &CancellationToken) -> bool {
        let woken = async {
            let changed = self.index.provisioning_dirty();
            tokio::time::timeout(wait, changed).await.unwrap_or(());
            tokio::time::sleep(GATHER).await;
            tenure.leading(&*self.clock).await;
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => false,
            () = woken => true,
        }
    }
}

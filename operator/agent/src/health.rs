use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// An agent whose watch of restart orders is refused for this time is not ready. A starting API
/// server can refuse requests for seconds.
const REFUSED_FOR: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The policy that restricts the agent to its node is in force.
    Policy,
    /// The NodeAgent reports the agent's capabilities.
    Object,
    Orders,
    Runtime,
    /// The records can be written.
    Records,
}

impl Part {
    const ALL: [Self; 5] = [
        Self::Policy,
        Self::Object,
        Self::Orders,
        Self::Runtime,
        Self::Records,
    ];
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Policy => "self-test of the admission policy",
            Self::Object => "NodeAgent of this node",
            Self::Orders => "list of restart orders",
            Self::Runtime => "container runtime",
            Self::Records => "records of this node",
        })
    }
}

/// Readiness of the agent, shared by clones. All parts start as pending. The manager relies only on
/// ready agents.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<Mutex<ReadinessState>>);

#[derive(Debug)]
struct ReadinessState {
    pending: BTreeMap<Part, String>,
    /// Why supervisors are unreachable. The agent is ready without them.
    without_supervisors: Option<String>,
    /// Why no restart orders arrive. The agent stays ready in an outage of the API server.
    without_orders: Option<String>,
    /// Since when the API server has refused the watch of restart orders.
    refused_since: Option<Instant>,
}

impl Default for Readiness {
    fn default() -> Self {
        let pending = Part::ALL
            .into_iter()
            .map(|part| (part, "not yet".to_owned()));
        Self(Arc::new(Mutex::new(ReadinessState {
            pending: pending.collect(),
            without_supervisors: None,
            without_orders: None,
            refused_since: None,
        })))
    }
}

impl Readiness {
    pub fn done(&self, part: Part) {
        self.lock().pending.remove(&part);
    }

    pub fn waits_for(&self, part: Part, why: &impl fmt::Display) {
        self.lock().pending.insert(part, why.to_string());
    }

    /// Updates the reason of a pending part. A ready part stays ready.
    pub fn still_waits_for(&self, part: Part, why: &impl fmt::Display) {
        if let Some(reason) = self.lock().pending.get_mut(&part) {
            *reason = why.to_string();
        }
    }

    /// Sets why supervisors are unreachable; `None` if they are reachable. Returns true on a
    /// change.
    pub fn without_supervisors(&self, why: Option<&str>) -> bool {
        let mut state = self.lock();
        let news = state.without_supervisors.as_deref() != why;
        if news {
            state.without_supervisors = why.map(str::to_owned);
        }
        news
    }

    /// The watch of restart orders fails. `refused`: the API server answers, and retries alone do
    /// not help.
    #[expect(
        clippy::disallowed_methods,
        reason = "time limits of I/O in tokio's time, which tests can pause; no decision reads it"
    )]
    pub fn lacks_orders(&self, why: &impl fmt::Display, refused: bool) {
        let mut state = self.lock();
        let why = why.to_string();
        if refused {
            let since = *state.refused_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= REFUSED_FOR {
                state.pending.insert(Part::Orders, why.clone());
            }
        } else {
            state.refused_since = None;
        }
        state.without_orders = Some(why);
    }

    /// The watch of restart orders works. `listed`: the agent has a list of all orders.
    pub fn has_orders(&self, listed: bool) {
        let mut state = self.lock();
        (state.without_orders, state.refused_since) = (None, None);
        if listed {
            state.pending.remove(&Part::Orders);
        }
    }

    pub fn remarks(&self) -> String {
        let state = self.lock();
        let supervisors = state.without_supervisors.iter();
        let orders = state.without_orders.iter();
        supervisors
            .map(|why| format!("without supervisors: {why}\n"))
            .chain(orders.map(|why| format!("without new restart orders: {why}\n")))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, ReadinessState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists the pending parts, one per line; `None` if all are ready.
    pub fn pending(&self) -> Option<String> {
        let state = self.lock();
        let lines: Vec<String> = state
            .pending
            .iter()
            .map(|(part, why)| format!("waiting for {part}: {why}\n"))
            .collect();
        (!lines.is_empty()).then(|| lines.concat())
    }

    pub fn report(&self) -> Result<String, String> {
        match self.pending() {
            None => Ok(format!("ok\n{}", self.remarks())),
            Some(pending) => Err(format!("{pending}{}", self.remarks())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_ready_when_every_part_is_there_and_says_what_is_missing() {
        let readiness = Readiness::default();
        for part in Part::ALL {
            assert!(readiness.pending().unwrap().contains(&part.to_string()));
            readiness.done(part);
        }
        assert_eq!(readiness.pending(), None);
        readiness.still_waits_for(Part::Runtime, &"one answer got lost");
        assert_eq!(readiness.pending(), None);
        readiness.waits_for(Part::Runtime, &"not there");
        readiness.still_waits_for(Part::Runtime, &"no answer");
        assert_eq!(
            readiness.pending().unwrap(),
            "waiting for container runtime: no answer\n"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_watch_ends_readiness_after_a_minute_and_an_outage_does_not() {
        for (refused, pending) in [(false, false), (true, true)] {
            let readiness = Readiness::default();
            for part in Part::ALL {
                readiness.done(part);
            }
            for _ in 0..3 {
                readiness.lacks_orders(&"no", refused);
                assert_eq!(readiness.pending(), None);
                assert_eq!(readiness.remarks(), "without new restart orders: no\n");
                let wait = (REFUSED_FOR / 2).saturating_sub(Duration::from_secs(1));
                tokio::time::advance(wait).await;
            }
            readiness.lacks_orders(&"no", refused);
            assert_eq!(readiness.pending().is_some(), pending);
            readiness.has_orders(true);
            assert_eq!(
                (readiness.pending(), readiness.remarks()),
                (None, String::new())
            );
        }
    }

    #[test]
    fn an_agent_without_supervisors_is_ready_and_says_so_once() {
        let readiness = Readiness::default();
        for part in Part::ALL {
            readiness.done(part);
        }
        assert_eq!(readiness.remarks(), "");
        assert!(readiness.without_supervisors(Some("switched off")));
        assert!(!readiness.without_supervisors(Some("switched off")));
        assert_eq!(readiness.pending(), None);
        assert_eq!(readiness.remarks(), "without supervisors: switched off\n");
        assert!(readiness.without_supervisors(None));
        assert_eq!(readiness.remarks(), "");
    }
}

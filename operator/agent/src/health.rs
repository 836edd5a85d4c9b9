use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
pub struct Readiness(Arc<Mutex<Known>>);

#[derive(Debug)]
struct Known {
    pending: BTreeMap<Part, String>,
    /// Why supervisors are unreachable. The agent is ready without them.
    without_supervisors: Option<String>,
}

impl Default for Readiness {
    fn default() -> Self {
        let pending = Part::ALL
            .into_iter()
            .map(|part| (part, "not yet".to_owned()));
        Self(Arc::new(Mutex::new(Known {
            pending: pending.collect(),
            without_supervisors: None,
        })))
    }
}

impl Readiness {
    pub fn done(&self, part: Part) {
        self.known().pending.remove(&part);
    }

    pub fn waits_for(&self, part: Part, why: &impl fmt::Display) {
        self.known().pending.insert(part, why.to_string());
    }

    /// Updates the reason of a pending part. A ready part stays ready.
    pub fn still_waits_for(&self, part: Part, why: &impl fmt::Display) {
        if let Some(known) = self.known().pending.get_mut(&part) {
            *known = why.to_string();
        }
    }

    /// Sets why supervisors are unreachable; `None` if they are reachable. Returns true on a
    /// change.
    pub fn without_supervisors(&self, why: Option<&str>) -> bool {
        let mut known = self.known();
        let news = known.without_supervisors.as_deref() != why;
        if news {
            known.without_supervisors = why.map(str::to_owned);
        }
        news
    }

    pub fn remarks(&self) -> String {
        let known = self.known();
        let why = known.without_supervisors.as_ref();
        why.map_or_else(String::new, |why| format!("without supervisors: {why}\n"))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists the pending parts, one per line; `None` if all are ready.
    pub fn pending(&self) -> Option<String> {
        let known = self.known();
        let lines: Vec<String> = known
            .pending
            .iter()
            .map(|(part, why)| format!("waiting for {part}: {why}\n"))
            .collect();
        (!lines.is_empty()).then(|| lines.concat())
    }

    pub fn answer(&self) -> Result<String, String> {
        match self.pending() {
            None => Ok(format!("ok\n{}", self.remarks())),
            Some(pending) => Err(pending),
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

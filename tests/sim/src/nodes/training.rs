//! Training processes of a node that report progress: their pace, and their real fate.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_kubelet::model::PodDesc;
use lockstep_kubelet::runtime::{Patience, Pretend};

/// Annotation of pods whose processes report progress, with a [`First`] as value.
pub const TELLS: &str = "sim/tells";
const CONTAINER: &str = "c";
/// Time from the start of a process to its first step, and between two steps.
const LOADS: TimeDelta = TimeDelta::seconds(9);
const STEP: TimeDelta = TimeDelta::seconds(4);
/// Duration of a slow step: a little less than the limit.
const SLOW_STEP: TimeDelta = TimeDelta::seconds(PROGRESS_TIMEOUT - 1);
/// Steps between two checkpoints.
const SAVES_EVERY: u64 = 5;

/// Longest time without a step, and after a start, in seconds.
pub const PROGRESS_TIMEOUT: i64 = 20;
/// See [`PROGRESS_TIMEOUT`].
pub const PROGRESS_STARTUP: i64 = 30;

/// First report of a process.
pub enum First {
    /// Step 0, at its start.
    AtOnce,
    /// After its first step.
    WithItsFirstStep,
}

impl First {
    /// Value of the annotation.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::AtOnce => "at once",
            Self::WithItsFirstStep => "with its first step",
        }
    }
}

/// Pace of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A step every few seconds, and checkpoints.
    Steady,
    /// Each step takes a little less than the limit.
    Slow,
    /// No further step, but further checkpoints.
    OnlySaves,
    /// No further step or checkpoint.
    Stalled,
}

/// One process, as it really was. Times are simulated times, whatever the node's clock shows.
#[derive(Clone, Debug)]
pub struct Life {
    pub pod: Arc<PodDesc>,
    pub attempt: u64,
    pub started_at: DateTime<Utc>,
    /// True if an earlier process in its container has reported a step.
    pub told_before: bool,
    /// Time of its last reported step.
    pub stepped_at: Option<DateTime<Utc>>,
    /// True if the kubelet has begun to stop its pod.
    pub stopping: bool,
    /// Last time at which it was known to be alive, or its end.
    pub lived_until: DateTime<Utc>,
    pub ended: bool,
    /// Request for a checkpoint because of which it has not hung.
    pub patience: Option<Patience>,
    container_id: String,
    pace: Pace,
    next: DateTime<Utc>,
    step: u64,
    saved: Option<u64>,
}

#[derive(Default)]
pub(super) struct Training {
    lives: Vec<Life>,
    /// UIDs of pods whose next process makes no step.
    stillborn: BTreeSet<String>,
}

impl Training {
    /// All processes, in the order of their starts.
    pub fn lives(&self) -> &[Life] {
        &self.lives
    }

    /// Sets the pace of a pod's process. False if no steady process runs.
    pub fn set_pace(&mut self, pod_uid: &str, pace: Pace) -> bool {
        let steady = |l: &&mut Life| l.pod.uid == pod_uid && l.is_steady();
        let Some(life) = self.lives.iter_mut().find(steady) else {
            return false;
        };
        life.pace = pace;
        if pace == Pace::Slow {
            life.next = life.stepped_at.unwrap_or(life.started_at) + SLOW_STEP;
        }
        true
    }

    /// The next process of a pod makes no step.
    pub fn never_begins(&mut self, pod_uid: &str) {
        self.stillborn.insert(pod_uid.to_owned());
    }

    /// The kubelet has begun to stop a pod.
    pub fn stopping(&mut self, pod_uid: &str) {
        for life in &mut self.lives {
            life.stopping |= !life.ended && life.pod.uid == pod_uid;
        }
    }

    /// All processes end with their containers.
    pub fn end(&mut self) {
        for life in &mut self.lives {
            life.ended = true;
            // The runtime numbers its containers from the start again.
            life.container_id.clear();
        }
    }

    /// Records processes that have ended.
    pub fn bury(&mut self, runtime: &Pretend) {
        if self.lives.iter().all(|l| l.ended) {
            return;
        }
        let alive = alive(runtime);
        for life in self.lives.iter_mut().filter(|l| !l.ended) {
            life.ended = !alive.iter().any(|(pod, attempt, container)| {
                (&pod.uid, *attempt, container) == (&life.pod.uid, life.attempt, &life.container_id)
            });
        }
    }

    /// Records processes that are alive at this time. `ahead`: how far the node's clock is ahead.
    pub fn observe(&mut self, runtime: &Pretend, at: DateTime<Utc>, ahead: TimeDelta) {
        for life in self.lives.iter_mut().filter(|l| !l.ended) {
            life.lived_until = at;
        }
        self.bury(runtime);
        for life in self.lives.iter_mut().filter(|l| !l.ended) {
            life.patience = match runtime.patience(&life.pod.uid) {
                Some(Patience::Until(at)) => Some(Patience::Until(at - ahead)),
                Some(Patience::SavedAt(at)) => Some(Patience::SavedAt(at - ahead)),
                None => None,
            };
        }
        for (pod, attempt, container_id) in alive(runtime) {
            let known = |l: &Life| !l.ended && l.container_id == container_id;
            if !self.lives.iter().any(known) {
                self.begin(pod, attempt, container_id, at);
            }
        }
    }

    fn begin(&mut self, pod: Arc<PodDesc>, attempt: u64, container_id: String, at: DateTime<Utc>) {
        let mut before = self.lives.iter();
        let told_before = before.any(|l| l.container_id == container_id && l.stepped_at.is_some());
        let stillborn = self.stillborn.remove(&pod.uid);
        let says = pod.annotations.get(TELLS);
        let tells_at_once = says.is_some_and(|says| says == First::AtOnce.as_str());
        self.lives.push(Life {
            attempt,
            started_at: at,
            told_before,
            stepped_at: None,
            stopping: false,
            lived_until: at,
            ended: false,
            patience: None,
            container_id,
            pace: if stillborn {
                Pace::Stalled
            } else {
                Pace::Steady
            },
            next: if tells_at_once { at } else { at + LOADS },
            step: 0,
            saved: None,
            pod,
        });
    }

    /// Time of the next report.
    pub fn next(&self) -> Option<DateTime<Utc>> {
        self.lives
            .iter()
            .filter(|l| l.goes_on())
            .map(|l| l.next)
            .min()
    }

    /// Reports at this time: UID of the pod, step and checkpoint.
    pub fn step(&mut self, at: DateTime<Utc>) -> Option<(String, u64, Option<u64>)> {
        let mut due = self.lives.iter_mut().filter(|l| l.goes_on());
        let life = due.find(|l| l.next <= at)?;
        life.goes_to_next(at);
        Some((life.pod.uid.clone(), life.step, life.saved))
    }
}

impl Life {
    /// True if it is alive and makes steps.
    pub fn is_steady(&self) -> bool {
        !self.ended && self.pace == Pace::Steady
    }

    /// True if it makes steps or checkpoints.
    fn goes_on(&self) -> bool {
        // The report at the start is no step: a process without steps sends it too.
        let begins = self.stepped_at.is_none() && self.next == self.started_at;
        !self.ended && (begins || self.pace != Pace::Stalled)
    }

    fn goes_to_next(&mut self, at: DateTime<Utc>) {
        let begins = self.next == self.started_at;
        if self.pace == Pace::OnlySaves {
            self.saved = Some(self.saved.unwrap_or_default() + 1);
            // The first checkpoint reports the first step.
            self.stepped_at = self.stepped_at.or(Some(at));
            self.next = at + STEP;
            return;
        }
        if !begins {
            self.step += 1;
        }
        if self.step > 0 && self.step.is_multiple_of(SAVES_EVERY) {
            self.saved = Some(self.step);
        }
        self.stepped_at = Some(at);
        self.next = at
            + match self.pace {
                _ if begins => LOADS,
                Pace::Slow => SLOW_STEP,
                Pace::Steady | Pace::OnlySaves | Pace::Stalled => STEP,
            };
    }
}

/// Pod, attempt and container of each living process that would report progress.
fn alive(runtime: &Pretend) -> Vec<(Arc<PodDesc>, u64, String)> {
    let children = runtime.children();
    if children.is_empty() {
        return Vec::new();
    }
    let mut out = Vec::new();
    for (pod, view) in runtime.table().all() {
        let child = children.iter().find(|(uid, _)| *uid == pod.uid);
        let mut containers = view.containers.into_iter();
        let container = containers.find(|c| c.alive() && c.name == CONTAINER);
        if let (Some((_, attempt)), Some(container)) = (child, container)
            && pod.annotations.contains_key(TELLS)
        {
            out.push((pod, *attempt, container.id));
        }
    }
    out
}

//! Training processes of a node that tell their progress: how they go on, and what really became of
//! them.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_kubelet::model::PodDesc;
use lockstep_kubelet::runtime::Pretend;

/// Annotation of the pods whose processes tell their progress, with a [`First`] as its value.
pub const TELLS: &str = "sim/tells";
/// Name of the container of such processes.
const CONTAINER: &str = "c";
/// From the start of a process to its first step, and from one step to the next.
const LOADS: TimeDelta = TimeDelta::seconds(9);
const STEP: TimeDelta = TimeDelta::seconds(4);
/// The same where it is slow: a little less than it may take.
const SLOW_STEP: TimeDelta = TimeDelta::seconds(PROGRESS_TIMEOUT - 1);
/// Steps from one checkpoint to the next.
const SAVES_EVERY: u64 = 5;

/// How long such processes may go without a step, in seconds; and after they have started.
pub const PROGRESS_TIMEOUT: i64 = 20;
/// See [`PROGRESS_TIMEOUT`].
pub const PROGRESS_STARTUP: i64 = 30;

/// When a process tells a step for the first time.
pub enum First {
    /// As it begins: step 0.
    AtOnce,
    /// When it has done one.
    WithItsFirstStep,
}

impl First {
    /// As pods say it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::AtOnce => "at once",
            Self::WithItsFirstStep => "with its first step",
        }
    }
}

/// How a process goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A step every few seconds, and a checkpoint now and then.
    Steady,
    /// A step in a little less time than it may take.
    Slow,
    /// No step any more, and checkpoints as ever.
    OnlySaves,
    /// Nothing any more.
    Stalled,
}

/// One process, as it really was. Times are those of the simulation, whatever the node's clock shows.
#[derive(Clone, Debug)]
pub struct Life {
    /// Its pod.
    pub pod: Arc<PodDesc>,
    /// Its attempt.
    pub attempt: u64,
    /// When it was started.
    pub started_at: DateTime<Utc>,
    /// Whether one before it in its container has told a step.
    pub told_before: bool,
    /// When it told its last step.
    pub stepped_at: Option<DateTime<Utc>>,
    /// Whether the kubelet has begun to stop its pod.
    pub stopping: bool,
    /// When it was last known to be alive, or ended.
    pub lived_until: DateTime<Utc>,
    /// Whether it has ended.
    pub ended: bool,
    container_id: String,
    pace: Pace,
    next: DateTime<Utc>,
    step: u64,
    saved: Option<u64>,
}

/// The processes of one node.
#[derive(Default)]
pub(super) struct Training {
    lives: Vec<Life>,
    /// UIDs of pods whose next process does no step.
    stillborn: BTreeSet<String>,
}

impl Training {
    /// All that ever were, in the order of their starts.
    pub fn lives(&self) -> &[Life] {
        &self.lives
    }

    /// The process of a pod goes on like this; false: there is none that goes on steadily.
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

    /// The next process of a pod does no step.
    pub fn never_begins(&mut self, pod_uid: &str) {
        self.stillborn.insert(pod_uid.to_owned());
    }

    /// The kubelet has begun to stop a pod.
    pub fn stopping(&mut self, pod_uid: &str) {
        for life in &mut self.lives {
            life.stopping |= !life.ended && life.pod.uid == pod_uid;
        }
    }

    /// All of them end, with their containers.
    pub fn end(&mut self) {
        for life in &mut self.lives {
            life.ended = true;
            // The runtime begins to number its containers anew.
            life.container_id.clear();
        }
    }

    /// Takes note of who has ended since it was last known to be alive.
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

    /// Takes note of who is alive at this time.
    pub fn observe(&mut self, runtime: &Pretend, at: DateTime<Utc>) {
        for life in self.lives.iter_mut().filter(|l| !l.ended) {
            life.lived_until = at;
        }
        self.bury(runtime);
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

    /// When somebody tells something next.
    pub fn next(&self) -> Option<DateTime<Utc>> {
        self.lives
            .iter()
            .filter(|l| l.goes_on())
            .map(|l| l.next)
            .min()
    }

    /// Who tells something at this time: UID of the pod, step and checkpoint.
    pub fn step(&mut self, at: DateTime<Utc>) -> Option<(String, u64, Option<u64>)> {
        let mut due = self.lives.iter_mut().filter(|l| l.goes_on());
        let life = due.find(|l| l.next <= at)?;
        life.goes_to_next(at);
        Some((life.pod.uid.clone(), life.step, life.saved))
    }
}

impl Life {
    /// Whether it is alive and does its steps.
    pub fn is_steady(&self) -> bool {
        !self.ended && self.pace == Pace::Steady
    }

    /// Whether it does something of its own accord.
    fn goes_on(&self) -> bool {
        // What a process tells as it begins is no step: one that is stillborn tells it, too.
        let begins = self.stepped_at.is_none() && self.next == self.started_at;
        !self.ended && (begins || self.pace != Pace::Stalled)
    }

    fn goes_to_next(&mut self, at: DateTime<Utc>) {
        let begins = self.next == self.started_at;
        if self.pace == Pace::OnlySaves {
            self.saved = Some(self.saved.unwrap_or_default() + 1);
            // With the first checkpoint it tells of a step for the first time.
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

/// Pod, attempt and container of each process that is alive and would tell its progress.
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

//! Undelivered events of the manager's watches: one queue per kind, each with its lag.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use kube::runtime::watcher::Event;
use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;
use serde_json::Value;

use super::store::key_of;

/// Events of one kind, oldest first, with their time of arrival.
#[derive(Debug, Default)]
struct Delivery {
    waiting: VecDeque<(DateTime<Utc>, Event<Arc<Value>>)>,
    lag: TimeDelta,
    held: bool,
    /// Last delivered version of each object.
    told: BTreeMap<Key, Arc<Value>>,
}

#[derive(Debug, Default)]
pub struct Watches(BTreeMap<WatchedKind, Delivery>);

impl Watches {
    /// From now on, events of a kind arrive this much later.
    pub fn delay(&mut self, kind: WatchedKind, lag: TimeDelta) {
        self.0.entry(kind).or_default().lag = lag;
    }

    /// Holds events of a kind back, or releases them.
    pub fn hold(&mut self, kind: WatchedKind, held: bool) {
        self.0.entry(kind).or_default().held = held;
    }

    /// Queues an event.
    pub(super) fn tell(&mut self, kind: WatchedKind, event: Event<Arc<Value>>, now: DateTime<Utc>) {
        let delivery = self.0.entry(kind).or_default();
        delivery.waiting.push_back((now + delivery.lag, event));
    }

    /// The watch of a kind breaks: undelivered events are lost, and all objects are listed again.
    pub(super) fn relist(
        &mut self,
        kind: WatchedKind,
        objects: Vec<Arc<Value>>,
        now: DateTime<Utc>,
    ) {
        self.0.entry(kind).or_default().waiting.clear();
        self.tell(kind, Event::Init, now);
        for object in objects {
            self.tell(kind, Event::InitApply(object), now);
        }
        self.tell(kind, Event::InitDone, now);
    }

    /// The next event of a kind that has arrived.
    pub(crate) fn next(&mut self, kind: WatchedKind, now: DateTime<Utc>) -> Option<Event<Value>> {
        let delivery = self.0.get_mut(&kind).filter(|d| !d.held)?;
        let (_, event) = delivery.waiting.pop_front_if(|(at, _)| *at <= now)?;
        match &event {
            Event::Apply(object) | Event::InitApply(object) => {
                delivery.told.insert(key_of(object), Arc::clone(object));
            }
            Event::Delete(object) => drop(delivery.told.remove(&key_of(object))),
            Event::Init | Event::InitDone => {}
        }
        let copy = |object: Arc<Value>| Value::clone(&object);
        Some(match event {
            Event::Apply(object) => Event::Apply(copy(object)),
            Event::Delete(object) => Event::Delete(copy(object)),
            Event::InitApply(object) => Event::InitApply(copy(object)),
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
        })
    }

    /// True if events of no kind are delayed.
    pub(crate) fn are_prompt(&self) -> bool {
        let mut all = self.0.values();
        all.all(|d| d.lag.is_zero() && !d.held)
    }

    /// The last delivered version of an object.
    pub(crate) fn told(&self, kind: WatchedKind, key: &Key) -> Option<&Arc<Value>> {
        self.0.get(&kind)?.told.get(key)
    }

    /// Time at which the next event arrives.
    pub(crate) fn due(&self) -> Option<DateTime<Utc>> {
        let open = self.0.values().filter(|d| !d.held);
        open.filter_map(|d| d.waiting.front().map(|(at, _)| *at))
            .min()
    }
}

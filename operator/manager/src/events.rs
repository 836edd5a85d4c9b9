//! Events (`events.k8s.io/v1`) on workloads, pod groups and victims.
//!
//! Publishing never blocks: reports pass through a bounded channel to one task. If the channel is
//! full or a request fails, the event is lost. The status has the history.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use lockstep_lifecycle::{EventNote, EventType, WorkloadView};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::debug;

use crate::clock::{Clock, Random};
use crate::time_conversion::to_jiff;

const CONTROLLER: &str = "lockstep.dev/manager";

/// Capacity of the channel. A preemption of 1000 pods causes a few events per gang.
const WAITING: usize = 1024;

/// An event with the same object, reason and note is not repeated within this time.
const REPEAT: Duration = Duration::from_mins(5);

/// The API server's limit of a note, in bytes.
const MAX_NOTE: usize = 1024;

pub fn register_lost(registry: &mut Registry) -> Counter {
    let lost = Counter::default();
    let help = "Events that could not be sent";
    registry.register("lockstep_events_lost", help, lost.clone());
    lost
}

#[derive(Clone, Debug, PartialEq)]
pub struct EventReport {
    pub regarding: ObjectReference,
    pub related: Option<ObjectReference>,
    /// True if an operator may have to act.
    pub warning: bool,
    pub reason: String,
    /// CamelCase.
    pub action: String,
    /// Cut to 1 kB.
    pub note: String,
}

/// Sender of reports. Clones share the channel.
#[derive(Clone, Debug)]
pub struct Events {
    sender: mpsc::Sender<EventReport>,
    lost: Counter,
}

pub type Reports = mpsc::Receiver<EventReport>;

impl Events {
    /// `lost` counts reports that do not fit.
    pub fn channel(lost: Counter) -> (Self, Reports) {
        let (sender, reports) = mpsc::channel(WAITING);
        (Self { sender, lost }, reports)
    }

    pub fn workload(&self, view: &WorkloadView, note: EventNote) {
        self.publish(EventReport {
            regarding: view.workload.object_ref(&()),
            related: None,
            warning: note.type_ == EventType::Warning,
            action: note.reason.clone(),
            reason: note.reason,
            note: note.note,
        });
    }

    pub fn publish(&self, report: EventReport) {
        if self.sender.try_send(report).is_err() {
            self.lost.inc();
        }
    }
}

pub struct Publisher {
    pub client: Client,
    pub clock: Arc<dyn Clock>,
    /// For the suffixes of event names.
    pub random: Random,
    pub identity: String,
    pub lost: Counter,
}

impl Publisher {
    /// Runs until all senders are dropped.
    pub async fn run(self, mut reports: Reports) {
        let mut recent = Recent::default();
        while let Some(report) = reports.recv().await {
            if !recent.is_new(&report, self.clock.monotonic()) {
                continue;
            }
            let event = self.event(report);
            let namespace = event.metadata.namespace.clone().unwrap_or_default();
            let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
            if let Err(error) = api.create(&PostParams::default(), &event).await {
                debug!(%error, "event lost");
                self.lost.inc();
            }
        }
    }

    fn event(&self, report: EventReport) -> Event {
        let (name, now) = (
            report.regarding.name.clone().unwrap_or_default(),
            self.clock.wall(),
        );
        // `kubectl describe` lists events by name, so names sort by time.
        let order = now.timestamp_nanos_opt().unwrap_or_default();
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{order:016x}.{}", self.random.id())),
                // As for other cluster-scoped objects of Kubernetes.
                namespace: Some(
                    report
                        .regarding
                        .namespace
                        .clone()
                        .unwrap_or_else(|| "default".into()),
                ),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(to_jiff(now))),
            reporting_controller: Some(CONTROLLER.into()),
            // The API server allows 128 bytes.
            reporting_instance: Some(cut(&self.identity, 128).to_owned()),
            action: Some(report.action),
            reason: Some(report.reason),
            note: Some(cut(&report.note, MAX_NOTE).to_owned()),
            type_: Some(if report.warning { "Warning" } else { "Normal" }.into()),
            regarding: Some(report.regarding),
            related: report.related,
            ..Event::default()
        }
    }
}

fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

/// Hashes of events sent within `REPEAT`.
#[derive(Debug, Default)]
struct Recent(BTreeMap<u64, Instant>);

impl Recent {
    fn is_new(&mut self, report: &EventReport, now: Instant) -> bool {
        self.0.retain(|_, at| now < *at + REPEAT);
        let mut hasher = DefaultHasher::new();
        (&report.regarding.uid, &report.reason, &report.note).hash(&mut hasher);
        let key = hasher.finish();
        let new = !self.0.contains_key(&key);
        if new {
            self.0.insert(key, now);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    fn report(note: &str) -> EventReport {
        EventReport {
            regarding: ObjectReference {
                uid: Some("u".into()),
                name: Some("w".into()),
                ..ObjectReference::default()
            },
            related: None,
            warning: false,
            reason: "Scheduled".into(),
            action: "Place".into(),
            note: note.into(),
        }
    }

    #[test]
    fn a_repeated_report_is_sent_again_only_after_a_while() {
        let (mut recent, now) = (Recent::default(), SystemClock.monotonic());
        assert!(recent.is_new(&report("a"), now));
        assert!(!recent.is_new(&report("a"), now + Duration::from_secs(299)));
        assert!(recent.is_new(&report("b"), now));
        assert!(recent.is_new(&report("a"), now + REPEAT));
    }

    #[test]
    fn a_long_note_is_cut_between_characters() {
        let note = "ä".repeat(1000);
        assert_eq!(cut(&note, 1023).len(), 1022);
        assert_eq!(cut("short", 1024), "short");
    }

    #[test]
    fn a_full_channel_drops_events_without_blocking() {
        let lost = Counter::default();
        let (events, _reports) = Events::channel(lost.clone());
        for _ in 0..WAITING + 3 {
            events.publish(report("a"));
        }
        assert_eq!(lost.get(), 3);
    }
}

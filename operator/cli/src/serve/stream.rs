use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use futures_util::stream;
use tokio::sync::watch;

use super::security::{data, refused};
use super::state::{Dashboard, Query, is_younger};
use crate::dashboard::pages::{Page, Shown, documents};
use crate::dashboard::reader::{DocumentReader, beat};
use crate::dashboard::view::PageReads;
use crate::reports;

/// Shortest time between two pushes.
const PUSH: Duration = Duration::from_millis(500);
/// Time without a change after which a beat follows. With two pauses, it is shorter than 5 s.
const QUIET: Duration = Duration::from_millis(3500);
/// Most open streams.
const STREAMS: usize = 16;
/// Shortest time between two reads of pods and events of an open workload.
const READS: Duration = Duration::from_secs(5);
const DOCTOR: Duration = Duration::from_mins(1);

/// One reader of one page.
struct Reading {
    dashboard: Arc<Dashboard>,
    shown: Shown,
    reader: DocumentReader,
    reads: PageReads,
    /// Time of the last reads of pods and events of the workload.
    read_at: Option<DateTime<Utc>>,
    changes: watch::Receiver<u64>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.dashboard.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Opens the stream of a page.
pub fn open(dashboard: Arc<Dashboard>, query: &Query) -> Response {
    let Some(page) = query.view.as_deref().and_then(Page::parse) else {
        return refused(StatusCode::BAD_REQUEST, "view: no such page");
    };
    if dashboard.streams.fetch_add(1, Ordering::Relaxed) >= STREAMS {
        dashboard.streams.fetch_sub(1, Ordering::Relaxed);
        let why = "too many open pages: close some";
        return refused(StatusCode::SERVICE_UNAVAILABLE, why);
    }
    let shown = Shown {
        page,
        workload: query.workload.clone(),
        namespace: query.namespace.clone(),
    };
    let reading = Reading {
        changes: dashboard.live.changes(),
        dashboard,
        shown,
        reader: DocumentReader::default(),
        reads: PageReads::default(),
        read_at: None,
    };
    // The next event is made only when the last one was taken: nothing queues for a slow reader.
    let events = stream::unfold(reading, |mut reading| async move {
        let event = reading.next().await;
        Some((Ok::<_, Infallible>(event), reading))
    });
    data(
        StatusCode::OK,
        "text/event-stream",
        Body::from_stream(events),
    )
}

impl Reading {
    async fn next(&mut self) -> String {
        let first = self.reader.is_new();
        if !first {
            tokio::time::sleep(PUSH).await;
        }
        let mut quiet = pin!(tokio::time::sleep(QUIET));
        loop {
            self.changes.borrow_and_update();
            Box::pin(self.read()).await;
            let now = self.dashboard.live.now();
            let all = {
                let view = self.dashboard.live.view().await;
                documents(&view, &self.reads, &self.shown, now)
            };
            let events = self.reader.events(all);
            if first || !events.is_empty() {
                return events + &beat(now);
            }
            tokio::select! {
                () = &mut quiet => return beat(self.dashboard.live.now()),
                changed = self.changes.changed() => if changed.is_err() {
                    // The view of a file does not change.
                    quiet.as_mut().await;
                },
            }
            tokio::time::sleep(PUSH).await;
        }
    }

    /// Reads what only this page shows.
    async fn read(&mut self) {
        let dashboard = Arc::clone(&self.dashboard);
        if self.shown.page.has_queue() {
            self.reads.queue = dashboard.queue_report().await;
        }
        let Some(cluster) = &dashboard.live.cluster else {
            return;
        };
        if self.shown.page == Page::Health {
            let own = dashboard.live.view().await.namespace.clone();
            let now = dashboard.live.now();
            let report = async {
                let doctor = reports::json(cluster, "doctor", own.as_deref(), None, now).await;
                Ok::<_, Infallible>(doctor.ok())
            };
            let Ok(doctor) = dashboard.doctor.get(DOCTOR, now, report).await;
            self.reads.doctor = doctor;
        }
        let now = dashboard.live.now();
        let due = !self.read_at.is_some_and(|at| is_younger(at, READS, now));
        let named = self.shown.workload.as_ref().filter(|_| due);
        let Some((namespace, name)) = named.filter(|_| self.shown.page == Page::Workload) else {
            return;
        };
        let found = {
            let view = dashboard.live.view().await;
            let workload = view.workload(namespace, name);
            workload.map(|w| (w.clone(), view.groups_of(w)))
        };
        if let Some((workload, groups)) = found {
            self.read_at = Some(now);
            self.reads.pods = cluster.pods_of(&workload).await.ok();
            self.reads.events = cluster
                .events_of(&workload, &groups)
                .await
                .unwrap_or_default();
        }
    }
}

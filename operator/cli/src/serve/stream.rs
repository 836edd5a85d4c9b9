use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::stream;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::security::{data, refused};
use super::state::{Dashboard, Query};
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
/// How long the first documents wait for what only their page shows.
const FIRST_READS: Duration = Duration::from_secs(1);
/// Time between reads of what only this page shows.
const READS: Duration = Duration::from_secs(5);
const DOCTOR: Duration = Duration::from_mins(1);

/// One reader of one page.
struct Reading {
    dashboard: Arc<Dashboard>,
    shown: Shown,
    reader: DocumentReader,
    reads: watch::Receiver<PageReads>,
    /// The task that reads, in which other readers may wait for the same read. It does not depend on
    /// how fast this reader takes events.
    _tasks: JoinSet<()>,
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
    let (sender, reads) = watch::channel(PageReads::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(read(Arc::clone(&dashboard), shown.clone(), sender));
    let reading = Reading {
        changes: dashboard.live.changes(),
        dashboard,
        shown,
        reader: DocumentReader::default(),
        reads,
        _tasks: tasks,
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
        } else if self.shown.has_reads() {
            // Without them, the first documents have less: the queue has no places.
            let _ = tokio::time::timeout(FIRST_READS, self.reads.changed()).await;
        }
        let mut quiet = pin!(tokio::time::sleep(QUIET));
        loop {
            self.changes.borrow_and_update();
            let now = self.dashboard.live.now();
            let all = {
                let view = self.dashboard.live.view().await;
                documents(&view, &self.reads.borrow_and_update(), &self.shown, now)
            };
            let events = self.reader.events(all);
            if first || !events.is_empty() {
                return events + &beat(now);
            }
            tokio::select! {
                () = &mut quiet => return beat(self.dashboard.live.now()),
                _ = self.changes.changed() => {}
                Ok(()) = self.reads.changed() => {}
            }
            tokio::time::sleep(PUSH).await;
        }
    }
}

/// Reads what only this page shows, again and again. The stream does not wait for these reads:
/// with thousands of nodes, a page without a sign of life would be stale before they are complete.
async fn read(dashboard: Arc<Dashboard>, shown: Shown, reads: watch::Sender<PageReads>) {
    while shown.has_reads() {
        if let Some((of, name)) = shown.one_workload() {
            dashboard.read_workload(of, name, &reads).await;
        }
        if shown.has_queue() {
            let queue = dashboard.queue_report().await;
            reads.send_modify(|reads| reads.queue = queue);
        }
        if shown.page == Page::Health {
            let doctor = dashboard.doctor_report().await;
            reads.send_modify(|reads| reads.doctor = doctor);
        }
        tokio::time::sleep(READS).await;
    }
}

impl Dashboard {
    /// Reads pods and events of a workload.
    async fn read_workload(&self, of: &str, name: &str, reads: &watch::Sender<PageReads>) {
        let found = {
            let view = self.live.view().await;
            let workload = view.workload(of, name);
            workload.map(|w| (w.clone(), view.groups_of(w)))
        };
        if let (Some(cluster), Some((workload, groups))) = (&self.live.cluster, found) {
            let pods = cluster.pods_of(&workload).await.ok();
            let events = cluster.events_of(&workload, &groups).await;
            reads.send_modify(|reads| {
                reads.pods = pods;
                reads.events = events.unwrap_or_default();
            });
        }
    }

    /// The report of `doctor`, made at most once in a minute. `None` without one.
    async fn doctor_report(&self) -> Option<Value> {
        let cluster = self.live.cluster.as_ref()?;
        let own = self.live.view().await.namespace.clone();
        let now = self.live.now();
        let report = async {
            let doctor = reports::json(cluster, "doctor", own.as_deref(), None, now).await;
            Ok::<_, Infallible>(doctor.ok())
        };
        let Ok(doctor) = self.doctor.get(DOCTOR, now, report).await;
        doctor
    }
}

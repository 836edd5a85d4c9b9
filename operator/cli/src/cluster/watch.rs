//! When to look again.

use std::time::Duration;

use futures_util::stream::{BoxStream, SelectAll, StreamExt, select_all};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use lockstep_api::{PodGroup, TrainingWorkload};

use super::ClusterReader;

/// Ages grow even while nothing changes.
const REFRESH: Duration = Duration::from_secs(10);
/// One change seldom comes alone.
const TOGETHER: Duration = Duration::from_millis(500);

/// Changes of workloads and of their gangs: whatever else matters shows in their status.
pub struct Changes(SelectAll<BoxStream<'static, bool>>);

impl ClusterReader {
    /// Changes in a namespace, or in all.
    pub fn changes(&self, namespace: Option<&str>) -> Changes {
        let workloads = self.scoped::<PartialObjectMeta<TrainingWorkload>>(namespace);
        let groups = self.scoped::<PartialObjectMeta<PodGroup>>(namespace);
        let workloads = watcher(workloads, Config::default());
        let groups = watcher(groups, Config::default());
        Changes(select_all([
            workloads.default_backoff().map(|e| tells(&e)).boxed(),
            groups.default_backoff().map(|e| tells(&e)).boxed(),
        ]))
    }
}

/// Whether there is news: a watch that is refused has none, and the first list was shown already.
fn tells<K>(event: &Result<Event<K>, watcher::Error>) -> bool {
    matches!(event, Ok(Event::Apply(_) | Event::Delete(_)))
}

impl Changes {
    /// Waits for a change, or until ages have grown.
    pub async fn next(&mut self) {
        let news = async {
            while let Some(news) = self.0.next().await {
                if news {
                    return;
                }
            }
            std::future::pending::<()>().await;
        };
        if tokio::time::timeout(REFRESH, news).await.is_ok() {
            let more = async { while self.0.next().await.is_some() {} };
            // What comes within this time is shown with it.
            let _ = tokio::time::timeout(TOGETHER, more).await;
        }
    }
}

//! Watches for changes of the output.

use std::time::Duration;

use futures_util::stream::{BoxStream, SelectAll, StreamExt, select_all};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use lockstep_api::{PodGroup, TrainingWorkload};

use super::ClusterReader;

/// Interval without changes, because ages grow.
const REFRESH: Duration = Duration::from_secs(10);
/// Changes within this time share one refresh.
const TOGETHER: Duration = Duration::from_millis(500);

/// Changes of workloads and their pod groups, whose status reflects all other changes.
pub struct Changes(SelectAll<BoxStream<'static, bool>>);

impl ClusterReader {
    /// Watches one namespace, or all.
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

/// True for changes after the first list. A refused watch has no changes.
fn tells<K>(event: &Result<Event<K>, watcher::Error>) -> bool {
    matches!(event, Ok(Event::Apply(_) | Event::Delete(_)))
}

impl Changes {
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
            // Changes within this time share the refresh.
            let _ = tokio::time::timeout(TOGETHER, more).await;
        }
    }
}

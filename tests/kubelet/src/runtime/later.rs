//! Delayed work of a runtime, dropped with the runtime.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// All tasks in progress.
#[derive(Debug, Default)]
pub(super) struct Later(Mutex<JoinSet<()>>);

impl Later {
    /// Runs `work` after `wait`. Without a wait at once, so that a profile of zeros takes no time.
    pub(super) fn after(&self, wait: Duration, work: impl FnOnce() + Send + 'static) {
        if wait.is_zero() {
            return work();
        }
        self.run(async move {
            sleep(wait).await;
            work();
        });
    }

    /// Runs `work` concurrently.
    pub(super) fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }
}
